-- The tables of Weir's store, in the schema named SCHEMA. What is written here is the first version
-- of the schema; each later one is a file of its own, and SCHEMA.meta says which there is.

create table SCHEMA.meta (name text primary key, value text not null);

-- The states of limits. A key is the value's name; a name that is too long for an index is cut and
-- ends with its hash, and stands in full in the column name. Only the key is indexed, so that all
-- changes are made within the page (HOT) and leave the index alone. version 0 stands for no value:
-- a row that was made to be locked.
create table SCHEMA.states (
	key bytea not null,
	version bigint not null,
	until bigint not null,
	name bytea,
	data bytea not null,
	constraint states_key primary key (key)
) with (
	fillfactor = 60,
	autovacuum_vacuum_scale_factor = 0.1,
	autovacuum_vacuum_insert_scale_factor = 0.5,
	toast.autovacuum_vacuum_scale_factor = 0.1
);
alter table SCHEMA.states alter column key set storage plain;

-- How far the search for states that are over has come, and when it was last gone on with.
create table SCHEMA.sweep (block bigint not null, at bigint not null) with (fillfactor = 10);
insert into SCHEMA.sweep values (0, 0);

-- Reservations, by the instant at which they time out.
create table SCHEMA.reservations (
	id bytea primary key,
	due bigint not null,
	note bytea not null
);
create index reservations_due on SCHEMA.reservations (due);

-- Facts of the board. number is that of the change: an instant, above all earlier ones of the kind.
create table SCHEMA.facts (
	kind text not null,
	id bytea not null,
	number bigint not null,
	until bigint not null,
	at bigint not null,
	removed boolean not null,
	data bytea not null
);
create unique index facts_id on SCHEMA.facts (kind, sha256(id));
create index facts_number on SCHEMA.facts (kind, number);
create index facts_until on SCHEMA.facts (kind, until);

-- A kind has a name that is drawn when it is made, by which its nodes see that it is another one.
create table SCHEMA.kinds (
	kind text primary key,
	name text not null,
	number bigint not null,
	held bigint not null
);

-- Nodes, by the instant at which they count as gone.
create table SCHEMA.nodes (name text primary key, until bigint not null);

insert into SCHEMA.meta values ('version', '1');
