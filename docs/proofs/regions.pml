/*
 * A limit over several regions (docs/operating/redis.md), as a model for Spin: each region has a state
 * of its own under a ceiling, and borrows what another one has left. It is written from the
 * description of the protocol, not from the code. README.md beside this file says what is
 * proven, and how to run it.
 *
 * A borrower asks; the lender sets units aside until an instant, after which they count as used
 * there; the borrower takes as many out of its own state, once, before that instant. Nothing else
 * is ever told. Questions and answers arrive late or never, and a borrower may die with its answer.
 * A lender lends any number of units that it has left, for any time that the protocol lets it.
 *
 * There is no bound on time: all instants are kept as the number of ticks from now. A tick stands
 * for the resolution of the clock.
 */

/* The algorithm of the limit: -DALGORITHM=. */
#define FIXED 1 /* fixed_window: windows are aligned by each region's own clock */
#define LOG 2   /* sliding_log: each half-open window of the true time */
#ifndef ALGORITHM
#define ALGORITHM LOG
#endif

/* Bounds. */
#ifndef R
#define R 2 /* regions */
#endif
#ifndef C0
#define C0 3 /* ceilings */
#endif
#ifndef C1
#define C1 2
#endif
#ifndef C2
#define C2 1
#endif
#ifndef W
#define W 3 /* length of a window, in ticks */
#endif
#ifndef E
#define E 1 /* length of a generation, in ticks: units are lent for E to 2E */
#endif
#ifndef LOANS
#define LOANS 2 /* questions, answers and units out at once */
#endif
#ifndef SKEW
#define SKEW 1 /* ticks by which clocks differ; of FIXED, 0 or 1 */
#endif

/* Mutants: -DMUTANT=. Each breaks one rule of the protocol, and breaks the guarantee by that. */
#define EARLY 1           /* the borrower takes units out before the lender has set any aside */
#define LATE 2            /* the borrower takes them out a tick after the end */
#define FROM_ARRIVAL 3    /* the borrower counts the deadline from when the answer arrived */
#define TWICE 4           /* the borrower takes the units of one answer out twice */
#define ANY_WINDOW 5      /* the borrower takes them out of whatever window it is in */
#define TOO_MUCH 6        /* the borrower takes out more than it was lent */
#define LEND_BEYOND 7     /* the lender lends what it does not have */
#define OUT_IGNORED 8     /* the lender admits as if nothing were out */
#define FORGET_AT_END 9   /* the lender forgets what is out at its end */
#define CHARGE_AT_GRANT 10 /* the lender charges what it lends when it lends it */
#define RETURNS 11        /* the borrower also returns the units to the lender */
#ifndef MUTANT
#define MUTANT 0
#endif

#if MUTANT == 0
#define BOOKS(claim) assert(claim)
#else
#define BOOKS(claim) skip
#endif

#if R == 2
#define ALL (C0 + C1)
#define CEILING(r) (r == 0 -> C0 : C1)
#else
#define ALL (C0 + C1 + C2)
#define CEILING(r) (r == 0 -> C0 : (r == 1 -> C1 : C2))
#endif

#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define LESS(a, b) ((a) > (b) -> (a) - (b) : 0)

byte used[R]; /* what each state counts */
byte out[R];  /* what each region has lent */

#if ALGORITHM == LOG
byte at[R * W];           /* of each region: units by their age */
byte trueAt[W], trueUsed; /* what was truly admitted, and its sum */
#else
byte phase[R];    /* ticks since the region's window began */
byte window[R];   /* 1 if that is the next one after that of the last region, else 0 */
byte admitted[3]; /* what was truly admitted, as window has it */
#endif

/* Loans: a question on its way, or units that are out, or both an answer and its units. */
#define FREE 0
#define ASKED 1    /* the question is on its way */
#define ANSWERED 2 /* the answer is on its way */
#define GONE 3     /* it was heard, or lost */
byte loan[LOANS];
byte lender[LOANS];
byte borrower[LOANS];
byte units[LOANS];
byte ends[LOANS];  /* ticks until the lender takes them as used; 0: it has done so */
byte until[LOANS]; /* ticks in which the borrower may take them out; of a question: its age */
byte when[LOANS];  /* of FIXED: the lender's window, as in window */

/* admit lets region r admit one unit. This is the guarantee. */
inline admit(r) {
	used[r]++;
#if ALGORITHM == LOG
	at[r * W]++;
	trueAt[0]++;
	trueUsed++;
	assert(trueUsed <= ALL)
#else
	admitted[window[r]]++;
	assert(admitted[window[r]] <= ALL)
#endif
}

/* charge charges c units to region r as of some ticks ago, whether there is room or not. */
inline charge(r, c, ago) {
	used[r] = used[r] + c;
#if ALGORITHM == LOG
	at[r * W + ago] = at[r * W + ago] + c;
#endif
}

/* refund takes up to c units out of the state of region r, the newest first. */
inline refund(r, c) {
	y = MIN(c, used[r]);
	used[r] = used[r] - y;
#if ALGORITHM == LOG
	x = 0;
	do
	:: y > 0 ->
		if
		:: at[r * W + x] > 0 -> at[r * W + x]--; y--
		:: else -> x++
		fi
	:: else -> break
	od
#endif
}

/* books claims that each ceiling holds, and that what is true is charged or out. */
inline books() {
	BOOKS(used[0] + out[0] <= CEILING(0));
	BOOKS(used[1] + out[1] <= CEILING(1));
#if R > 2
	BOOKS(used[2] + out[2] <= CEILING(2));
#endif
#if ALGORITHM == LOG
	x = 0; y = 0;
	do
	:: x < R -> y = y + used[x] + out[x]; x++
	:: else -> break
	od;
	BOOKS(trueUsed <= y)
#endif
}

inline clear(i) {
	loan[i] = FREE; lender[i] = 0; borrower[i] = 0; units[i] = 0;
	ends[i] = 0; until[i] = 0; when[i] = 0
}

/* tidy frees a loan of which nothing can come any more. */
inline tidy(i) {
	if
	:: loan[i] == ANSWERED && until[i] == 0 -> loan[i] = GONE
	:: else
	fi;
	if
	:: loan[i] == GONE -> until[i] = 0; when[i] = 0; borrower[i] = 0
	:: else
	fi;
	if
	:: loan[i] == GONE && ends[i] == 0 -> clear(i)
	:: else
	fi
}

/* lend answers question i with u units until t ticks from now, by the lender's clock. */
inline lend(i, u, t) {
	units[i] = u;
	ends[i] = t;
	/* The deadline is what is left of the loan, from when the borrower asked. */
	until[i] = LESS(t, until[i]);
#if MUTANT == LATE
	until[i] = until[i] + 1;
#elif MUTANT == FROM_ARRIVAL
	until[i] = t;
#endif
#if ALGORITHM == FIXED
	when[i] = window[lender[i]];
#endif
#if MUTANT == CHARGE_AT_GRANT
	charge(lender[i], u, 0);
	ends[i] = 0;
#else
	out[lender[i]] = out[lender[i]] + u;
#endif
	loan[i] = ANSWERED;
#if MUTANT == EARLY
	loan[i] = GONE; /* it has what it asked for */
#endif
	tidy(i)
}

/* hear lets the borrower take the units of answer i out of its own state. */
inline hear(i) {
	r = borrower[i];
	u = units[i];
#if MUTANT == TOO_MUCH
	u = u + 1;
#endif
	refund(r, u);
#if MUTANT == RETURNS
	if
	:: ends[i] > 0 -> out[lender[i]] = out[lender[i]] - units[i]; ends[i] = 0
	:: else
	fi;
#endif
#if MUTANT == TWICE
	if
	:: again == 0 -> loan[i] = GONE
	:: else
	fi;
#else
	loan[i] = GONE;
#endif
	tidy(i)
}

/* end lets the lender take what is out of loan i as used, as of the last tick of the loan. */
inline end(i) {
	out[lender[i]] = out[lender[i]] - units[i];
#if MUTANT != FORGET_AT_END
	charge(lender[i], units[i], 1);
#endif
}

/* Time. */

inline tickLoan(i) {
	if
	:: loan[i] == ASKED ->
		until[i]++;
		if
		:: until[i] >= 2 * E + 1 -> clear(i) /* no answer could be of use */
		:: else
		fi
	:: loan[i] == ANSWERED ->
#if MUTANT != FROM_ARRIVAL
		until[i] = LESS(until[i], 1);
#endif
		skip
	:: else
	fi;
	if
	:: ends[i] > 0 ->
		ends[i]--;
		if
		:: ends[i] == 0 -> end(i)
		:: else
		fi
	:: else
	fi;
	tidy(i)
}

#if ALGORITHM == LOG
inline tickState(r) {
	used[r] = used[r] - at[r * W + W - 1];
	x = W - 1;
	do
	:: x > 0 -> at[r * W + x] = at[r * W + x - 1]; x--
	:: else -> break
	od;
	at[r * W] = 0
}
#else
/* The states turn after the loans have ended: those end with the window at the latest. */
inline tickState(r) {
	phase[r]++;
	if
	:: phase[r] == W ->
		BOOKS(out[r] == 0);
		phase[r] = 0; used[r] = 0; window[r]++
	:: else
	fi
}

/* turn makes the window of the last region the first one. */
inline turn() {
	x = 0; y = 0;
	do
	:: x < R ->
		if
		:: window[x] == 0 -> y++
		:: else
		fi;
		x++
	:: else -> break
	od;
	if
	:: y == 0 ->
		admitted[0] = admitted[1]; admitted[1] = admitted[2]; admitted[2] = 0;
		x = 0;
		do
		:: x < R -> window[x]--; x++
		:: else -> break
		od;
		x = 0;
		do
		:: x < LOANS ->
			if
			:: loan[x] == ANSWERED && when[x] == 0 -> when[x] = 3 /* it is over everywhere */
			:: loan[x] == ANSWERED && when[x] > 0 && when[x] < 3 -> when[x]--
			:: else
			fi;
			x++
		:: else -> break
		od
	:: else
	fi
}
#endif

inline tick() {
#if ALGORITHM == LOG
	r = 0;
	do
	:: r < R -> tickState(r); r++
	:: else -> break
	od;
	trueUsed = trueUsed - trueAt[W - 1];
	x = W - 1;
	do
	:: x > 0 -> trueAt[x] = trueAt[x - 1]; x--
	:: else -> break
	od;
	trueAt[0] = 0;
#endif
	i = 0;
	do
	:: i < LOANS -> tickLoan(i); i++
	:: else -> break
	od;
#if ALGORITHM == FIXED
	r = 0;
	do
	:: r < R -> tickState(r); r++
	:: else -> break
	od;
	turn();
#endif
	books()
}

/* Loans that differ in their place alone are the same state. */

inline swap(a, b) {
	x = a; a = b; b = x
}

#define SAYS(i) ((((((loan[i] * 4 + lender[i]) * 4 + borrower[i]) * 8 + units[i]) * 8 + ends[i]) \
	* 8 + until[i]) * 4 + when[i])

inline order(i, k) {
	if
	:: SAYS(i) < SAYS(k) ->
		swap(loan[i], loan[k]); swap(lender[i], lender[k]);
		swap(borrower[i], borrower[k]); swap(units[i], units[k]);
		swap(ends[i], ends[k]); swap(until[i], until[k]); swap(when[i], when[k])
	:: else
	fi
}

inline sort() {
	order(0, 1)
#if LOANS > 2
	;
	order(1, 2);
	order(0, 1)
#endif
}

#if ALGORITHM == FIXED
#if MUTANT == ANY_WINDOW
#define IN_TIME(i) (until[i] > 0)
#else
#define IN_TIME(i) (until[i] > 0 && when[i] == window[borrower[i]])
#endif
#define LONGEST (MIN(2 * E, W - phase[lender[i]]))
#else
#define IN_TIME(i) (until[i] > 0)
#define LONGEST (2 * E)
#endif

#if MUTANT == OUT_IGNORED
#define ROOM(r) (LESS(CEILING(r), used[r]))
#else
#define ROOM(r) (LESS(CEILING(r), used[r] + out[r]))
#endif
#if MUTANT == LEND_BEYOND
#define LENDABLE(r) 2
#else
#define LENDABLE(r) (LESS(CEILING(r), used[r] + out[r]))
#endif

active proctype world() {
	byte i, r, s, u, t, again;
	short x, y;
#if ALGORITHM == FIXED && SKEW > 0
	/* The clock of any one region is ahead, or behind the others. */
	atomic {
		if
		:: phase[0] = 1
		:: phase[1] = 1
		:: R > 2 -> phase[0] = 1; phase[1] = 1
		:: skip
		fi
	}
#endif
	do
	:: atomic {
		if
		:: d_step { printf("a tick\n"); tick(); skip }
		:: select(r : 0 .. R - 1);
			if
			:: ROOM(r) > 0 -> d_step { printf("region %d admits\n", r); admit(r); books(); skip }
			:: else
			fi
		:: select(r : 0 .. R - 1);
			select(s : 0 .. R - 1);
			i = 0;
			do
			:: i < LOANS && loan[i] != FREE -> i++
			:: else -> break
			od;
			if
			:: r != s && i < LOANS ->
				d_step {
					printf("region %d asks region %d\n", r, s);
					loan[i] = ASKED; borrower[i] = r; lender[i] = s;
#if MUTANT == EARLY
					refund(r, 2);
#endif
					skip
				}
			:: else
			fi
		:: select(i : 0 .. LOANS - 1);
			if
			:: loan[i] == ASKED && LENDABLE(lender[i]) > 0 ->
				select(u : 1 .. LENDABLE(lender[i]));
				t = MIN(E, LONGEST);
				do
				:: t < LONGEST -> t++
				:: break
				od;
				skip;
				d_step {
					printf("region %d lends %d for %d\n", lender[i], u, t);
					lend(i, u, t);
					books();
					skip
				}
			:: else
			fi
		:: select(i : 0 .. LOANS - 1);
			if
			:: loan[i] == ASKED -> d_step { printf("a question is lost\n"); clear(i); skip }
			:: loan[i] == ANSWERED ->
				d_step { printf("an answer is lost\n"); loan[i] = GONE; tidy(i); skip }
			:: else
			fi
		:: select(i : 0 .. LOANS - 1);
			if
			:: loan[i] == ANSWERED && IN_TIME(i) ->
#if MUTANT == TWICE
				select(again : 0 .. 1);
				skip;
#endif
				d_step {
					printf("region %d takes %d out\n", borrower[i], units[i]);
					hear(i);
					books();
					skip
				}
			:: else
			fi
		fi;
		d_step {
			i = 0; r = 0; s = 0; u = 0; t = 0; again = 0;
			sort();
			x = 0; y = 0
		}
	}
	od
}
