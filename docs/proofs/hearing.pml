/*
 * What a region hears of another one (docs/operating/redis.md), as a model for Spin: nodes tell what
 * they used in a log, which is bounded; bridges, two at a time, read it in batches and charge it to
 * the state of their region, with the position in the log. It is written from the description of
 * the protocol, not from the code. README.md beside this file says what is proven, and how to run
 * it.
 *
 * The claim: each entry is charged once, or a gap was counted before the position went past it.
 * Bridges stop anywhere, for any time, and begin anew; calls are made and their answers lost; and
 * the store of the region that hears fails over to what it was a while ago.
 */

#ifndef TOLD
#define TOLD 3 /* entries that are told in all */
#endif
#ifndef KEPT
#define KEPT 2 /* entries that the log keeps */
#endif
#ifndef BATCH
#define BATCH 2 /* entries that are read at a time */
#endif
#define BRIDGES 2

/* Mutants: -DMUTANT=. */
#define NO_COMPARE 1   /* a batch is charged wherever the position is */
#define CHARGE_FIRST 2 /* the position moves in a step of its own, after the charge */
#define MOVE_FIRST 3   /* the position moves in a step of its own, before the charge */
#define GAP_FIRST 4    /* whether there is a gap is looked up before the entries are read */
#define SPLIT_COPY 5   /* what fails over is the position alone, not the charges */
#ifndef MUTANT
#define MUTANT 0
#endif

#define NOWHERE 255 /* the position of one who never heard */

/* The log: entries are numbered from 0. Those from first up to told are there. */
byte told, first;

/* The state of the region that hears, and a copy of it from a while ago. */
byte position = NOWHERE, oldPosition = NOWHERE;
byte heard[TOLD], oldHeard[TOLD]; /* how often each entry was charged */

/* What is claimed of each entry: it need not be heard, since it was told before the region began to
 * listen, or since a gap was counted that it was in. */
bool before[TOLD], gap[TOLD];

/* The claim, between any two steps. */
inline check() {
	x = 0;
	do
	:: x < TOLD ->
		assert(heard[x] <= 1);
		assert(position == NOWHERE || x >= position || heard[x] == 1 || before[x] || gap[x]);
		assert(position == NOWHERE || x < position || heard[x] == 0);
		x++
	:: else -> break
	od;
	x = 0
}

/* begin notes what comes before all that the region hears, if this is where it begins. */
inline begin() {
	x = (from == NOWHERE -> 0 : to);
	do
	:: x < to -> before[x] = true; x++
	:: else -> break
	od;
	x = 0
}

/* add charges a batch. */
inline add() {
	x = at;
	do
	:: x < to -> heard[x]++; assert(heard[x] <= 1); x++
	:: else -> break
	od;
	x = 0
}

/* It cannot hold between the two steps of a mutant. */
#if MUTANT == CHARGE_FIRST || MUTANT == MOVE_FIRST
#define CHECK skip
#else
#define CHECK check()
#endif

active proctype nodes() {
	do
	:: told < TOLD -> atomic {
			told++;
			if
			:: told - first > KEPT -> first++
			:: else
			fi
		}
	:: else -> break
	od
}

active [BRIDGES] proctype bridge() {
	byte from, at, to, x;
	bool missed;
end:
	do
	:: d_step { /* it learns the position */ from = position; skip };
again:
		if
		:: from == NOWHERE -> d_step { to = told; at = told; missed = false; skip }
		:: from != NOWHERE ->
#if MUTANT == GAP_FIRST
			missed = from < first;
#endif
			d_step {
#if MUTANT != GAP_FIRST
				missed = from < first;
#endif
				at = (from < first -> first : from);
				to = (at + BATCH < told -> at + BATCH : told);
				skip
			}
		fi;
		if
		:: from != NOWHERE && missed -> d_step { /* it counts the gap */
				x = from;
				do
				:: x < at -> gap[x] = true; x++
				:: else -> break
				od;
				x = 0
			}
		:: else
		fi;
		if
		:: from != NOWHERE && to == from -> goto done /* nothing is new */
		:: else
		fi;
		if
		:: goto done /* it dies, or the call is lost */
		:: true
		fi;
#if MUTANT == CHARGE_FIRST
		if
		:: position == from ->
			d_step { true -> begin(); add() };
			if
			:: goto done /* it dies */
			:: true
			fi;
			if
			:: position == from -> position = to
			:: else
			fi
		:: else
		fi;
		goto done;
#elif MUTANT == MOVE_FIRST
		if
		:: atomic { position == from -> begin(); position = to };
			if
			:: d_step { true -> check() }; goto done /* it dies */
			:: true
			fi;
			d_step { true -> add() }
		:: position != from
		fi;
		goto done;
#else
		if
#if MUTANT == NO_COMPARE
		:: d_step { true ->
#else
		:: d_step { position == from ->
#endif
				begin();
				add();
				position = to;
				check()
			};
			if
			:: from = to; goto again /* it goes on */
			:: goto done /* the answer is lost, or it dies */
			fi
#if MUTANT != NO_COMPARE
		:: position != from -> goto done /* another bridge was here */
#endif
		fi;
#endif
done:
		skip;
		d_step { from = 0; at = 0; to = 0; missed = false; x = 0 }
	od
}

/* The store of the region that hears makes a copy, and fails over to it. */
active proctype copies() {
	byte x;
end:
	do
	:: d_step {
			oldPosition = position;
			x = 0;
			do
			:: x < TOLD -> oldHeard[x] = heard[x]; x++
			:: else -> break
			od;
			x = 0
		}
	:: d_step {
			position = oldPosition;
			x = 0;
			do
			:: x < TOLD ->
#if MUTANT != SPLIT_COPY
				heard[x] = oldHeard[x];
#endif
				x++
			:: else -> break
			od;
			x = 0;
			CHECK
		}
	od
}
