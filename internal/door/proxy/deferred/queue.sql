-- The queue of deferred requests in PostgreSQL, in the schema SCHEMA; it does what queue.lua does.
-- Times are the server's own, in microseconds. One operation runs at a time.
create table if not exists SCHEMA.deferred_lines (
	line bytea primary key,
	due bigint, -- when its head may be asked for; null: nothing stands in it
	busy text   -- the job that is being sent, if it is out
);
create index if not exists deferred_lines_due on SCHEMA.deferred_lines (due) where due is not null;

create table if not exists SCHEMA.deferred_jobs (
	id text primary key,
	line bytea not null,
	place bigint, -- in its line; null: it is not there
	back bigint,  -- when it goes back to its line; null: it is not out
	state text not null,
	queue text not null,
	job bytea,    -- null when it is done
	size bigint not null,
	queued bigint not null,
	came bigint not null,
	attempts bigint not null default 0,
	status bigint not null default 0,
	error text not null default '',
	ended bigint not null default 0
);
create index if not exists deferred_jobs_place on SCHEMA.deferred_jobs (line, place) where place is not null;
create index if not exists deferred_jobs_back on SCHEMA.deferred_jobs (back) where back is not null;
create index if not exists deferred_jobs_came on SCHEMA.deferred_jobs (came, id) where state in ('queued', 'active');
create index if not exists deferred_jobs_ended on SCHEMA.deferred_jobs (state, ended, id) where state in ('done', 'failed');
create sequence if not exists SCHEMA.deferred_places;

-- How many jobs there are of a kind, and their bytes: live ones, done ones, dead letters.
create table if not exists SCHEMA.deferred_sums (kind text primary key, jobs bigint not null, bytes bigint not null);
insert into SCHEMA.deferred_sums values ('live', 0, 0), ('done', 0, 0), ('failed', 0, 0) on conflict do nothing;

-- Of each line how many live jobs there are, and their bytes.
create table if not exists SCHEMA.deferred_held (line bytea primary key, jobs bigint not null, bytes bigint not null);
insert into SCHEMA.deferred_held select line, count(*), sum(size) from SCHEMA.deferred_jobs
	where state in ('queued', 'active') group by line on conflict do nothing;

create or replace function SCHEMA.deferred_live_NAME(l bytea, n bigint, size bigint) returns void
language plpgsql as $function$
begin
	perform SCHEMA.deferred_sum_NAME('live', n, size);
	insert into SCHEMA.deferred_held as h (line, jobs, bytes) values (l, n, n * size)
	on conflict (line) do update set jobs = h.jobs + n, bytes = h.bytes + n * size;
	delete from SCHEMA.deferred_held where line = l and jobs <= 0;
end $function$;

create or replace function SCHEMA.deferred_sum_NAME(of text, n bigint, size bigint) returns void
language sql as $function$
	update SCHEMA.deferred_sums set jobs = jobs + n, bytes = bytes + n * size where kind = of
$function$;

create or replace function SCHEMA.deferred_room_NAME(size bigint, most_jobs bigint, most_bytes bigint) returns boolean
language sql as $function$
	select jobs + 1 <= most_jobs and bytes + size <= most_bytes from SCHEMA.deferred_sums where kind = 'live'
$function$;

-- free is from when on the head of a line may be asked for: at once, unless a job of the line is
-- being sent.
create or replace function SCHEMA.deferred_free_NAME(l bytea, now bigint) returns bigint
language sql as $function$
	select greatest(now, (select j.back from SCHEMA.deferred_lines d join SCHEMA.deferred_jobs j on j.id = d.busy where d.line = l))
$function$;

-- release lets the next job of a line go, if this one is being sent.
create or replace function SCHEMA.deferred_release_NAME(of text, l bytea, now bigint) returns void
language plpgsql as $function$
begin
	update SCHEMA.deferred_lines set busy = null, due = case when due is null then null else now end where line = l and busy = of;
	delete from SCHEMA.deferred_lines where line = l and busy is null and due is null;
end $function$;

create or replace function SCHEMA.deferred_append_NAME(of text, l bytea, now bigint) returns void
language plpgsql as $function$
begin
	update SCHEMA.deferred_jobs set place = nextval('SCHEMA.deferred_places') where id = of;
	insert into SCHEMA.deferred_lines as d (line, due) values (l, now)
	on conflict (line) do update set due = coalesce(d.due, SCHEMA.deferred_free_NAME(l, now));
end $function$;

-- unline takes a job out of its line; false if it is not there.
create or replace function SCHEMA.deferred_unline_NAME(of text, l bytea) returns boolean
language plpgsql as $function$
begin
	update SCHEMA.deferred_jobs set place = null where id = of and place is not null;
	if not found then
		return false;
	end if;
	if not exists (select from SCHEMA.deferred_jobs where line = l and place is not null) then
		update SCHEMA.deferred_lines set due = null where line = l;
		delete from SCHEMA.deferred_lines where line = l and busy is null;
	end if;
	return true;
end $function$;

create or replace function SCHEMA.deferred_forget_NAME(of text, before bigint, most bigint, most_bytes bigint) returns void
language plpgsql as $function$
declare
	c record;
	s record;
begin
	-- The states are those of the index, which is not used for a state that is not known beforehand.
	for c in select id, ended, size from SCHEMA.deferred_jobs
		where state = of and state in ('done', 'failed') order by ended, id limit 16 loop
		select jobs, bytes into s from SCHEMA.deferred_sums where kind = of;
		exit when c.ended > before and s.jobs <= most and (of = 'done' or s.bytes <= most_bytes);
		delete from SCHEMA.deferred_jobs where id = c.id;
		perform SCHEMA.deferred_sum_NAME(of, -1, c.size);
	end loop;
end $function$;

-- deferred runs an operation. It returns a number, and for next the job and its attempts. A session
-- keeps plans from when the tables were small. Then the cheapest is to read all of a table, which
-- with thousands of jobs takes more than all else. So that is ruled out, also in what is called.
create or replace function SCHEMA.deferred_NAME(
	op text, of text, l bytea, text_of_job bytea, a bigint, b bigint, c bigint, d bigint, why text,
	out n bigint, out job bytea, out attempts bigint
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $function$
#variable_conflict use_column
declare
	now bigint;
	j record;
	first record;
begin
	perform pg_advisory_xact_lock(LOCK);
	now := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
	if op = 'put' then
		n := 1;
		if exists (select from SCHEMA.deferred_jobs where id = of) then
			return; -- put before, by a call whose answer was lost
		end if;
		if not SCHEMA.deferred_room_NAME(length(text_of_job), a, b) then
			n := 0;
			return;
		end if;
		select s.jobs, s.bytes into first from SCHEMA.deferred_sums s where kind = 'live';
		if exists (select from SCHEMA.deferred_held h where h.line = l
			and (h.jobs > a - first.jobs - 1 or h.bytes > b - first.bytes - length(text_of_job))) then
			n := 2;
			return;
		end if;
		insert into SCHEMA.deferred_jobs (id, line, state, queue, job, size, queued, came)
		values (of, l, 'queued', why, text_of_job, length(text_of_job), c, now);
		perform SCHEMA.deferred_live_NAME(l, 1, length(text_of_job)), SCHEMA.deferred_append_NAME(of, l, now);
		return;
	elsif op = 'next' then
		for j in select id, line from SCHEMA.deferred_jobs where back <= now order by back limit 64 loop
			update SCHEMA.deferred_jobs set back = null, state = 'queued' where id = j.id;
			perform SCHEMA.deferred_release_NAME(j.id, j.line, now);
			perform SCHEMA.deferred_append_NAME(j.id, j.line, now);
		end loop;
		n := least(1000000, (select min(back) from SCHEMA.deferred_jobs where back is not null) - now);
		loop
			select line, due into first from SCHEMA.deferred_lines where due is not null order by due limit 1;
			exit when not found;
			if first.due > now then
				n := least(n, first.due - now);
				exit;
			end if;
			select d.id, d.job, d.attempts into j from SCHEMA.deferred_jobs d
			where d.line = first.line and d.place is not null order by d.place limit 1;
			if found then
				update SCHEMA.deferred_lines set due = now + a where line = first.line;
				job := j.job;
				attempts := j.attempts;
				return;
			end if;
			update SCHEMA.deferred_lines set due = null where line = first.line;
		end loop;
		n := greatest(n, 0);
		return;
	elsif op = 'postpone' then
		update SCHEMA.deferred_lines set due = greatest(SCHEMA.deferred_free_NAME(l, now), now + a)
		where line = l and due is not null;
		n := 1;
		return;
	end if;

	select id, line, state, size, back into j from SCHEMA.deferred_jobs where id = of;
	n := -1;
	if not found then
		return;
	end if;
	if op = 'take' then
		n := 0;
		if j.back is not null or not SCHEMA.deferred_unline_NAME(of, j.line) then
			return;
		end if;
		update SCHEMA.deferred_jobs set back = now + a, state = 'active', attempts = attempts + 1 where id = of;
		insert into SCHEMA.deferred_lines as x (line, busy) values (j.line, of)
		on conflict (line) do update set busy = of, due = case when x.due is null then null else now + a end;
		n := 1;
	elsif op = 'sent' then
		if j.back is not null then
			perform SCHEMA.deferred_release_NAME(of, j.line, now);
		end if;
		n := 1;
	elsif op = 'keep' then
		n := 0;
		if j.back is not null then
			update SCHEMA.deferred_jobs set back = now + a where id = of;
			update SCHEMA.deferred_lines set due = now + a where line = j.line and busy = of and due is not null;
			n := 1;
		end if;
	elsif op in ('done', 'failed') then
		if j.state in ('done', 'failed') then
			return;
		end if;
		if j.back is not null then
			update SCHEMA.deferred_jobs set back = null where id = of;
			perform SCHEMA.deferred_release_NAME(of, j.line, now);
		elsif SCHEMA.deferred_unline_NAME(of, j.line) then
			update SCHEMA.deferred_lines set due = SCHEMA.deferred_free_NAME(j.line, now) where line = j.line and due is not null;
		end if;
		update SCHEMA.deferred_jobs set state = op, status = a, error = why, ended = now,
			job = case when op = 'done' then null else job end where id = of;
		perform SCHEMA.deferred_live_NAME(j.line, -1, j.size), SCHEMA.deferred_sum_NAME(op, 1, j.size);
		perform SCHEMA.deferred_forget_NAME(op, now - b, c, d);
		n := 1;
	elsif op = 'again' then
		if j.back is null then
			return;
		end if;
		update SCHEMA.deferred_jobs set back = now + a, state = 'queued', status = b, error = why where id = of;
		perform SCHEMA.deferred_release_NAME(of, j.line, now);
		n := 1;
	elsif op = 'retry' then
		if j.state <> 'failed' then
			return;
		end if;
		n := 0;
		if not SCHEMA.deferred_room_NAME(j.size, a, b) then
			return;
		end if;
		update SCHEMA.deferred_jobs set state = 'queued', attempts = 0, status = 0, error = '', ended = 0, came = now where id = of;
		perform SCHEMA.deferred_sum_NAME('failed', -1, j.size), SCHEMA.deferred_live_NAME(j.line, 1, j.size);
		perform SCHEMA.deferred_append_NAME(of, j.line, now);
		n := 1;
	elsif op = 'drop' then
		n := case j.state when 'active' then 0 when 'done' then -1 else 1 end;
		if n < 1 then
			return;
		end if;
		if j.back is null then
			perform SCHEMA.deferred_unline_NAME(of, j.line);
		end if;
		if j.state = 'failed' then
			perform SCHEMA.deferred_sum_NAME('failed', -1, j.size);
		else
			perform SCHEMA.deferred_live_NAME(j.line, -1, j.size);
		end if;
		delete from SCHEMA.deferred_jobs where id = of;
	end if;
end $function$;
