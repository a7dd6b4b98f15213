-- The tables of rules in PostgreSQL, in a schema of their own. All of it may be executed again.
create schema if not exists weir_rules;

create table if not exists weir_rules.meta (schema integer not null);
insert into weir_rules.meta (schema) select 1 where not exists (select from weir_rules.meta);

-- A version is a whole folder of rule files, with their tests. It never changes; only its files may
-- go, when it is old (weir_rules.prune): then they are null.
create table if not exists weir_rules.version (
  space  text not null check (space ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
  number bigint not null check (number > 0),
  parent bigint,
  files  jsonb check (jsonb_typeof(files) = 'object'),
  digest bytea not null check (octet_length(digest) = 32),
  author text not null,
  note   text not null,
  origin text not null check (origin in ('push', 'page', 'rollback', 'import')),
  made   timestamptz not null,
  primary key (space, number),
  foreign key (space, parent) references weir_rules.version (space, number)
);

-- The version of each space that is to be in force.
create table if not exists weir_rules.head (
  space   text primary key,
  version bigint not null,
  since   timestamptz not null,
  foreign key (space, version) references weir_rules.version (space, number)
);

-- What each node says of itself: which version it has in force, and which one it cannot put in
-- force, and why. By "until" it says so again, if it lives.
create table if not exists weir_rules.node (
  space   text not null,
  node    text not null,
  version bigint not null,
  refused bigint,
  error   text not null,
  silent  boolean not null,
  at      timestamptz not null,
  until   timestamptz not null,
  primary key (space, node)
) with (fillfactor = 50);

-- Who changed what. The hash of a record is the SHA-256 of the hash before it and of the record.
create table if not exists weir_rules.audit (
  space  text not null,
  number bigint not null,
  at     timestamptz not null,
  who    text not null,
  login  text not null,
  what   text not null,
  before bigint,
  after  bigint,
  note   text not null,
  digest bytea,
  hash   bytea not null,
  primary key (space, number)
);

create or replace function weir_rules.tell() returns trigger language plpgsql as $$
begin
  perform pg_notify('weir_rules', new.space || ' ' || new.version);
  return new;
end $$;

create or replace function weir_rules.keep_history() returns trigger language plpgsql as $$
begin
  if tg_op = 'UPDATE' and tg_table_name = 'version' then
    -- Only that old files go.
    if new.files is null and to_jsonb(new) - 'files' = to_jsonb(old) - 'files' then
      return new;
    end if;
  end if;
  raise exception 'weir_rules.% only grows: nobody may % what is there', tg_table_name, lower(tg_op)
    using errcode = 'insufficient_privilege';
end $$;

drop trigger if exists tell on weir_rules.head;
create trigger tell after insert or update on weir_rules.head
  for each row execute function weir_rules.tell();
drop trigger if exists keep_history on weir_rules.version;
create trigger keep_history before update or delete on weir_rules.version
  for each row execute function weir_rules.keep_history();
drop trigger if exists keep_all on weir_rules.version;
create trigger keep_all before truncate on weir_rules.version
  for each statement execute function weir_rules.keep_history();
drop trigger if exists keep_history on weir_rules.audit;
create trigger keep_history before update or delete on weir_rules.audit
  for each row execute function weir_rules.keep_history();
drop trigger if exists keep_all on weir_rules.audit;
create trigger keep_all before truncate on weir_rules.audit
  for each statement execute function weir_rules.keep_history();

-- A value with its length before it, so that nothing is ambiguous.
create or replace function weir_rules.sized(value text) returns text
language sql immutable set search_path = pg_catalog as $$
  select coalesce(octet_length(convert_to(value, 'UTF8')) || ':' || value, '-') || ','
$$;

-- Adds a record to the chain of a space. The caller holds the lock on its head.
create or replace function weir_rules.record(
  in_space text, in_who text, in_what text, in_before bigint, in_after bigint, in_note text, in_digest bytea
) returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  last_number bigint;
  last_hash   bytea;
  stamp       timestamptz := clock_timestamp();
begin
  select number, hash into last_number, last_hash
    from weir_rules.audit where space = in_space order by number desc limit 1;
  last_number := coalesce(last_number, 0);
  last_hash := coalesce(last_hash, decode(repeat('00', 32), 'hex'));
  insert into weir_rules.audit values (
    in_space, last_number + 1, stamp, in_who, session_user, in_what, in_before, in_after, in_note, in_digest,
    sha256(last_hash || convert_to(
      weir_rules.sized(in_space) || weir_rules.sized((last_number + 1)::text)
      || weir_rules.sized((extract(epoch from stamp) * 1000000)::bigint::text)
      || weir_rules.sized(in_who) || weir_rules.sized(session_user::text) || weir_rules.sized(in_what)
      || weir_rules.sized(in_before::text) || weir_rules.sized(in_after::text) || weir_rules.sized(in_note)
      || weir_rules.sized(encode(in_digest, 'hex')), 'UTF8')));
end $$;

-- Locks the head of a space, and returns its version; 0 if it has none, and then nobody else makes
-- one either.
create or replace function weir_rules.lock_head(in_space text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  present bigint;
begin
  select version into present from weir_rules.head where space = in_space for update;
  if not found then
    lock table weir_rules.head in share row exclusive mode;
    select version into present from weir_rules.head where space = in_space for update;
  end if;
  return coalesce(present, 0);
end $$;

-- Makes a version and puts it at the head, if the head is the one that is expected (0: none). It
-- returns the new version, or 0, and the head that there was.
create or replace function weir_rules.push(
  in_space text, expected bigint, in_files jsonb, in_digest bytea,
  in_author text, in_note text, in_origin text, in_what text, out pushed bigint, out found_head bigint
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  pushed := 0;
  found_head := weir_rules.lock_head(in_space);
  if found_head <> expected then
    return;
  end if;
  select coalesce(max(number), 0) + 1 into pushed from weir_rules.version where space = in_space;
  insert into weir_rules.version
    values (in_space, pushed, nullif(found_head, 0), in_files, in_digest, in_author, in_note, in_origin, clock_timestamp());
  insert into weir_rules.head values (in_space, pushed, clock_timestamp())
    on conflict (space) do update set version = excluded.version, since = excluded.since;
  perform weir_rules.record(in_space, in_author, in_what, nullif(found_head, 0), pushed, in_note, in_digest);
end $$;

-- Drops the files of all versions of a space but the last ones and the one in force, and what nodes
-- said that are long gone. It returns how many versions lost their files.
create or replace function weir_rules.prune(in_space text, keep bigint, in_author text, in_note text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  present bigint := weir_rules.lock_head(in_space);
  dropped bigint;
begin
  update weir_rules.version set files = null
    where space = in_space and files is not null and number <> present
      and number <= (select max(number) from weir_rules.version where space = in_space) - greatest(keep, 1);
  get diagnostics dropped = row_count;
  delete from weir_rules.node where space = in_space and until < now() - interval '1 day';
  if dropped > 0 then
    perform weir_rules.record(in_space, in_author, 'prune: the files of ' || dropped || ' versions', nullif(present, 0), nullif(present, 0), in_note, null);
  end if;
  return dropped;
end $$;

revoke all on all functions in schema weir_rules from public;
revoke all on all tables in schema weir_rules from public;
