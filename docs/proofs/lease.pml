/*
 * Units lent ahead (docs/how-it-works/algorithms.md, "Units that are lent ahead"), as a model for Spin: one
 * limit, its store, nodes that borrow from it, and a network. It is written from the description of
 * the protocol, not from the code of package algo. README.md beside this file says what is proven,
 * and how to run it.
 *
 * The network delays, reorders and loses messages, and delivers a call twice that tells nothing. A
 * node waits for no answer before it calls again. It asks for whatever it may, it tells and returns
 * when it likes, it stops for any time, and it dies at any time. The store lends any number of
 * units up to what the protocol lets it, so that it does not matter how they are shared out.
 *
 * There is no bound on time: all instants are kept as the number of ticks from now, so that the
 * states of all times are finitely many. A tick stands for the resolution of the clock: what the
 * protocol charges to the last microsecond is charged to the last tick here.
 */

/* The algorithm of the limit: -DALGORITHM=. */
#define FIXED 1   /* fixed_window: each aligned window admits at most N */
#define LOG 2     /* sliding_log: each half-open window does */
#define BUCKET 3  /* token_bucket: N per window, and a burst of B */
#define SLIDING 4 /* sliding_window of one bucket: floor(estimate) is at most N */
#ifndef ALGORITHM
#define ALGORITHM LOG
#endif

/* Bounds. */
#ifndef N
#define N 3 /* units of a window */
#endif
#ifndef B
#define B N /* units of a bucket */
#endif
#ifndef W
#define W 3 /* length of a window, in ticks */
#endif
#ifndef E
#define E 1 /* length of a generation, in ticks */
#endif
#ifndef LENT
#define LENT 2 /* units that may be out at once; a node asks for as many */
#endif
#ifndef NODES
#define NODES 2
#endif
#ifndef NET
#define NET 2 /* messages under way at once */
#endif

/* Mutants: -DMUTANT=. Each breaks one rule of the protocol, and breaks the guarantee by that. */
#define CHARGE_AT_GRANT 1   /* units are charged when they are lent */
#define FORGET_AT_END 2     /* units that are out when their generation ends are forgotten */
#define TELL_TWICE 3        /* a call that tells is delivered twice */
#define USE_AFTER_RETURN 4  /* a node goes on using what it returned */
#define LATE 5              /* a node uses units for one tick too long */
#define FROM_ARRIVAL 6      /* a node counts the deadline from when the answer arrived */
#define NO_FENCE 7          /* what is told of an ended generation is believed */
#define OUT_IGNORED 8       /* the store admits as if nothing were out */
#define LEND_BEYOND 9       /* the store lends what is not free */
#define TOLD_IS_RETURNED 10 /* used units are not charged when they are told */
#define STAMP_EARLY 11      /* what was never told is charged as of the beginning of its lease */
#define HEAR_TWICE 12       /* an answer is heard twice */
#ifndef MUTANT
#define MUTANT 0
#endif

/* A mutant is judged by the guarantee alone, not by what holds of the books on the way to it. */
#if MUTANT == 0
#define BOOKS(claim) assert(claim)
#else
#define BOOKS(claim) skip
#endif

#if MUTANT == LATE
#define TOO_LONG 1
#else
#define TOO_LONG 0
#endif

/*
 * What the limit counts. Each algorithm has it twice: as the store counts it, and as it would count
 * if each unit had been charged when it was truly admitted. A load is in 1/W of a unit.
 */
#if ALGORITHM == FIXED
#define SPAN W /* a charge counts no longer than that */
byte phase; /* ticks since the window began */
byte cur, trueCur;
#define LOAD (cur * W)
#define TRUE_LOAD (trueCur * W)
#define WITHIN (TRUE_LOAD <= N * W)
#define ROOM (N - cur)
#endif

#if ALGORITHM == LOG
#define SPAN W
byte at[W], trueAt[W]; /* units by their age */
byte total, trueTotal; /* their sums */
#define LOAD (total * W)
#define TRUE_LOAD (trueTotal * W)
#define WITHIN (TRUE_LOAD <= N * W)
#define ROOM (N - total)
#endif

#if ALGORITHM == BUCKET
#define SPAN ((B * W + N - 1) / N)
byte level; /* what was missing from the bucket at some instant, in 1/W of a unit */
byte since; /* ticks since then */
byte trueLevel;
#define LOAD (level) /* after roll() */
#define TRUE_LOAD (trueLevel)
#define WITHIN (TRUE_LOAD <= B * W)
#define ROOM ((B * W - level) / W)
#endif

#if ALGORITHM == SLIDING
#define SPAN (2 * W)
byte phase;
byte cur, prev, trueCur, truePrev;
#define LOAD (prev * (W - phase) + cur * W)
#define TRUE_LOAD (truePrev * (W - phase) + trueCur * W)
#define WITHIN (TRUE_LOAD / W <= N)
#define ROOM (N - LOAD / W)
#endif

/* What is out, in two generations: the older one ends in end ticks, the newer one E later. If end
 * is 0 or less, the older one has ended and the store was not asked since. */
byte older, newer;
short end;
#define OUT (older + newer)

/* What a node holds, in two entries, one of each generation. */
#define EVERY (2 * NODES)
byte left[EVERY];  /* units that it may use */
byte used[EVERY];  /* units that it used, and has not told of */
byte until[EVERY]; /* ticks until the generation ends; 0: it has ended */
byte uses[EVERY];  /* ticks until the node's own deadline */

/* Messages: calls on their way to the store, and answers on their way back that bring units. */
#define NONE 0
#define CALL 1
#define ANSWER 2
byte kind[NET];
byte from[NET]; /* the node that called */
byte cost[NET]; /* of a call: units to admit at once */
byte want[NET]; /* units wanted ahead; of an answer: units lent */
byte age[NET];  /* ticks since it was sent; of an answer: ticks until the node's deadline */
/* What a call tells of two generations. Of an answer, the first of ends is when its units end. */
#define TOLD (2 * NET)
byte ends[TOLD];  /* ticks until the generation ends; 0: it has ended */
byte spent[TOLD]; /* units used */
byte given[TOLD]; /* units returned */

#define MIN(a, b) (a < b -> a : b)
#define LESS(a, b) (a > b -> a - b : 0)

/* The store. */

/* charge charges c units as of some ticks ago, whether there is room or not. */
inline charge(c, ago) {
#if ALGORITHM == FIXED
	if
	:: ago <= phase -> cur = cur + c
	:: else /* a window that is over */
	fi
#elif ALGORITHM == LOG
	if
	:: ago < W -> at[ago] = at[ago] + c; total = total + c
	:: else
	fi
#elif ALGORITHM == BUCKET
	BOOKS(since >= ago);
	level = LESS(level, N * (since - ago)) + c * W;
	since = ago
#else
	if
	:: ago <= phase -> cur = cur + c
	:: ago > phase && ago <= phase + W -> prev = prev + c
	:: else
	fi
#endif
}

/* admit notes that c units are truly admitted now. This is the guarantee. */
inline admit(c) {
#if ALGORITHM == LOG
	trueAt[0] = trueAt[0] + c;
	trueTotal = trueTotal + c;
#elif ALGORITHM == BUCKET
	trueLevel = trueLevel + c * W;
#else
	trueCur = trueCur + c;
#endif
	assert(WITHIN)
}

/* books claims that what is true is within what is charged and out, and that within the limit. */
inline books() {
	BOOKS(TRUE_LOAD <= LOAD + OUT * W);
	BOOKS(ROOM >= OUT);
	BOOKS(OUT <= LENT);
	BOOKS((OUT > 0 && end > 0 && end <= E) || (OUT == 0 && end == 0))
}

/* roll ends the generations that are over: what is out of them is charged as of their last tick. */
inline roll() {
	do
	:: OUT > 0 && end <= 0 ->
		if
		:: older > 0 ->
			x = 1 - end;
#if MUTANT == STAMP_EARLY
			x = 2 * E - end;
#if ALGORITHM == BUCKET
			x = MIN(x, since);
#endif
#endif
#if MUTANT != FORGET_AT_END
			charge(older, x);
#endif
		:: else
		fi;
		older = newer; newer = 0; end = end + E
	:: else -> break
	od;
#if ALGORITHM == BUCKET
	level = LESS(level, N * since);
	since = 0;
#endif
	tidyRecord()
}

inline tidyRecord() {
	if
	:: OUT == 0 -> end = 0
	:: else
	fi
}

/* told takes down what became of units that end in t ticks; t is 0 if they have ended. */
inline told(i) {
#if MUTANT == NO_FENCE
	if
	:: ends[i] == 0 && spent[i] + given[i] > 0 -> ends[i] = LESS(end, 0)
	:: else
	fi;
#endif
	if
	:: ends[i] > 0 && OUT > 0 && ends[i] == end -> settle(older, i)
	:: ends[i] > 0 && OUT > 0 && ends[i] == end + E -> settle(newer, i)
	:: else -> BOOKS(ends[i] == 0)
	fi
}

inline settle(out, i) {
	BOOKS(spent[i] + given[i] <= out);
	x = MIN(spent[i], out);
	out = out - x;
#if MUTANT != TOLD_IS_RETURNED
	if
	:: x > 0 -> charge(x, 0)
	:: else
	fi;
#endif
	out = LESS(out, given[i])
}

/* serve decides call m. It leaves the most units that it could lend then in free. */
inline serve(m) {
	roll();
	books();
	told(2 * m);
	told(2 * m + 1);
	tidyRecord();
	books();
	y = ROOM - OUT;
#if MUTANT == OUT_IGNORED
	y = ROOM;
#endif
	if
	:: y < cost[m] -> free = 0
	:: else ->
		if
		:: cost[m] > 0 ->
			charge(cost[m], 0);
			admit(cost[m])
		:: else
		fi;
		y = ROOM - OUT;
#if MUTANT == LEND_BEYOND
		y = LENT;
#endif
		y = MIN(y, LENT - OUT);
		y = MIN(y, want[m]);
		free = (y > 0 -> y : 0)
	fi
}

/* lend lends units of the newer generation, or of the older one if only that ends in time, and
 * answers call m in place a. A first generation ends after first ticks. */
inline lend(m, a, units, first) {
	if
	:: OUT == 0 -> end = first
	:: else
	fi;
	x = end + E;
#if ALGORITHM == FIXED
	if
	:: x > W - phase -> x = (end <= W - phase -> end : 0)
	:: else
	fi;
#endif
	/* The deadline is what is left of the lease, from when the node asked. */
	y = LESS(x + TOO_LONG, age[m]);
#if MUTANT == FROM_ARRIVAL
	y = x;
#endif
#if MUTANT == CHARGE_AT_GRANT
	charge(units, 0);
#else
	if
	:: x == 0
	:: x > 0 && x == end -> older = older + units
	:: x > 0 && x > end -> newer = newer + units
	fi;
#endif
	tidyRecord();
	books();
	who = from[m];
	if
	:: again == 0 -> clear(m)
	:: else
	fi;
	if
	:: x > 0 && y > 0 && a < NET ->
		kind[a] = ANSWER; from[a] = who; want[a] = units;
		ends[2 * a] = x; age[a] = y
	:: else /* it is of no use, or lost */
	fi
}

inline clear(m) {
	kind[m] = NONE; from[m] = 0; cost[m] = 0; want[m] = 0; age[m] = 0;
	ends[2 * m] = 0; spent[2 * m] = 0; given[2 * m] = 0;
	ends[2 * m + 1] = 0; spent[2 * m + 1] = 0; given[2 * m + 1] = 0
}

/* A node. */

inline tidy(h) {
	if
	:: until[h] == 0 ->
		used[h] = 0;
		left[h] = (uses[h] > 0 -> left[h] : 0)
	:: else
	fi;
	if
	:: left[h] + used[h] == 0 -> until[h] = 0; uses[h] = 0
	:: else
	fi
}

inline use(h) {
	left[h]--;
	used[h]++;
	tidy(h);
	admit(1)
}

/* send takes what it tells out of the node's books: nothing is ever told again. */
inline send(m, n, c, u, returns) {
	kind[m] = CALL; from[m] = n; cost[m] = c; want[m] = u;
	report(2 * n, 2 * m, returns);
	report(2 * n + 1, 2 * m + 1, returns);
	if
	:: c + u + ends[2 * m] + ends[2 * m + 1] == 0 -> clear(m) /* it says nothing */
	:: else
	fi
}

inline report(h, i, returns) {
	ends[i] = until[h];
	spent[i] = used[h];
	given[i] = (returns && until[h] > 0 -> left[h] : 0);
	used[h] = 0;
#if MUTANT != USE_AFTER_RETURN
	left[h] = (returns -> 0 : left[h]);
#endif
	if
	:: spent[i] + given[i] == 0 -> ends[i] = 0
	:: else
	fi;
	tidy(h)
}

inline hear(m) {
	x = 2 * from[m];
	if
	:: left[x] + used[x] > 0 && until[x] != ends[2 * m] -> x = x + 1
	:: else
	fi;
	if
	:: left[x] + used[x] == 0 || until[x] == ends[2 * m] ->
		left[x] = left[x] + want[m];
		until[x] = ends[2 * m];
		uses[x] = (uses[x] > age[m] -> uses[x] : age[m])
	:: else /* both entries are taken */
	fi
}

inline crash(n) {
	left[2 * n] = 0; used[2 * n] = 0; tidy(2 * n);
	left[2 * n + 1] = 0; used[2 * n + 1] = 0; tidy(2 * n + 1)
}

/* Time. */

inline tickLimit() {
#if ALGORITHM == LOG
	total = total - at[W - 1];
	trueTotal = trueTotal - trueAt[W - 1];
	x = W - 1;
	do
	:: x > 0 -> at[x] = at[x - 1]; trueAt[x] = trueAt[x - 1]; x = x - 1
	:: else -> break
	od;
	at[0] = 0; trueAt[0] = 0
#elif ALGORITHM == BUCKET
	trueLevel = LESS(trueLevel, N);
	since++;
	if
	:: OUT == 0 && level <= N * since -> level = 0; since = 0
	:: else
	fi
#else
	phase++;
	if
	:: phase == W ->
		phase = 0;
#if ALGORITHM == SLIDING
		prev = cur; truePrev = trueCur;
#endif
		cur = 0; trueCur = 0
	:: else
	fi
#endif
}

/* The store forgets a record once all that is out, charged at its end, would count no more. */
inline tickRecord() {
	if
	:: OUT > 0 ->
		end--;
		if
		:: end + E - 1 + SPAN <= 0 ->
			BOOKS(TRUE_LOAD == 0);
			older = 0; newer = 0; end = 0
		:: else
		fi
	:: else
	fi
}

inline tickNode(h) {
	until[h] = LESS(until[h], 1);
	uses[h] = LESS(uses[h], 1);
	tidy(h)
}

inline tickTold(i) {
	ends[i] = LESS(ends[i], 1);
#if MUTANT != NO_FENCE
	if
	:: ends[i] == 0 -> spent[i] = 0; given[i] = 0 /* it says nothing any more */
	:: else
	fi
#endif
}

inline tickMessage(m) {
	tickTold(2 * m);
	tickTold(2 * m + 1);
	if
	:: kind[m] == CALL -> age[m] = MIN(age[m] + 1, 2 * E + TOO_LONG)
	:: kind[m] == ANSWER ->
#if MUTANT != FROM_ARRIVAL
		age[m] = age[m] - 1;
#endif
		if
		:: age[m] == 0 -> clear(m) /* of no use any more */
		:: else
		fi
	:: else
	fi
}

inline tick() {
	tickLimit();
	tickRecord();
	x = 0;
	do
	:: x < EVERY -> tickNode(x); x = x + 1
	:: else -> break
	od;
	x = 0;
	do
	:: x < NET -> tickMessage(x); x = x + 1
	:: else -> break
	od
}

/* Nodes, entries and messages that differ in their place alone are the same state. */

inline swapByte(a, b) {
	x = a; a = b; b = x
}

inline swapHeld(h, k) {
	swapByte(left[h], left[k]);
	swapByte(used[h], used[k]);
	swapByte(until[h], until[k]);
	swapByte(uses[h], uses[k])
}

inline swapTold(i, k) {
	swapByte(ends[i], ends[k]);
	swapByte(spent[i], spent[k]);
	swapByte(given[i], given[k])
}

inline swapMessage(m, k) {
	swapByte(kind[m], kind[k]);
	swapByte(from[m], from[k]);
	swapByte(cost[m], cost[k]);
	swapByte(want[m], want[k]);
	swapByte(age[m], age[k]);
	swapTold(2 * m, 2 * k);
	swapTold(2 * m + 1, 2 * k + 1)
}

#define HELD(h) (((until[h] * 16 + uses[h]) * 16 + left[h]) * 16 + used[h])
#define TELLS(i) ((ends[i] * 16 + spent[i]) * 16 + given[i])
#define SAYS(m) ((((kind[m] * 4 + from[m]) * 8 + cost[m]) * 8 + want[m]) * 16 + age[m])
#define LOWER(m, k) (SAYS(m) < SAYS(k) || (SAYS(m) == SAYS(k) && (TELLS(2 * m) < TELLS(2 * k) || \
	(TELLS(2 * m) == TELLS(2 * k) && TELLS(2 * m + 1) < TELLS(2 * k + 1)))))

inline order(m, k) {
	if
	:: LOWER(m, k) -> swapMessage(m, k)
	:: else
	fi
}

inline sort() {
	x = 0;
	do
	:: x < NODES ->
		if
		:: HELD(2 * x) < HELD(2 * x + 1) -> n = x; swapHeld(2 * n, 2 * n + 1); x = n
		:: else
		fi;
		x = x + 1
	:: else -> break
	od;
	n = 0;
#if NODES == 2
	if
	:: HELD(0) < HELD(2) || (HELD(0) == HELD(2) && HELD(1) < HELD(3)) ->
		swapHeld(0, 2);
		swapHeld(1, 3);
		m = 0;
		do
		:: m < NET ->
			from[m] = (kind[m] == NONE -> 0 : 1 - from[m]);
			m++
		:: else -> break
		od;
		m = 0
	:: else
	fi;
#endif
#if NET > 1
	order(0, 1)
#endif
#if NET > 2
	;
	order(1, 2);
	order(0, 1)
#endif
}

/* place finds a place for a message, NET if there is none. */
inline place() {
	k = 0;
	do
	:: k < NET && kind[k] != NONE -> k++
	:: else -> break
	od
}

active proctype world() {
	byte n, m, k, a, c, u, returns, free, units, first, who, again;
	short x, y;
	do
	:: atomic {
		if
		:: d_step { printf("a tick\n"); tick(); skip }
		:: select(k : 0 .. EVERY - 1);
			if
			:: left[k] > 0 && uses[k] > 0 ->
				d_step { printf("node %d uses a unit\n", k / 2); use(k); skip }
			:: else
			fi
		:: select(n : 0 .. NODES - 1);
			skip;
			d_step { printf("node %d dies\n", n); crash(n); skip }
		:: place();
			select(n : 0 .. NODES - 1);
			if
			:: k == NET
			:: k < NET ->
				select(c : 0 .. 1);
				if
				:: u = 0
				:: u = LENT
				fi;
				select(returns : 0 .. 1);
				skip;
				d_step {
					printf("node %d tells, asks for %d and %d ahead, returns: %d\n", n, c, u, returns);
					send(k, n, c, u, returns);
					skip
				}
			fi
		:: select(m : 0 .. NET - 1);
			if
			:: kind[m] != NONE -> d_step { printf("a message is lost\n"); clear(m); skip }
			:: else
			fi
		:: select(m : 0 .. NET - 1);
			if
			:: kind[m] == ANSWER ->
				d_step {
					printf("node %d gets %d\n", from[m], want[m]);
					hear(m);
#if MUTANT != HEAR_TWICE
					clear(m);
#endif
					skip
				}
			:: else
			fi
		:: select(m : 0 .. NET - 1);
			if
			:: kind[m] == CALL ->
				again = 0;
				a = m;
				if
				:: true
				:: MUTANT == TELL_TWICE || ends[2 * m] + ends[2 * m + 1] == 0 ->
					place();
					again = 1;
					a = k
				fi;
				d_step { printf("node %d is heard\n", from[m]); serve(m); skip };
				units = 0;
				do
				:: units < free -> units++
				:: break
				od;
				first = E;
				do
				:: units > 0 && OUT == 0 && first > 1 -> first--
				:: break
				od;
				skip;
				d_step {
					if
					:: units > 0 -> printf("%d are lent\n", units); lend(m, a, units, first)
					:: units == 0 && again == 0 -> clear(m)
					:: else
					fi;
					skip
				}
			:: else
			fi
		fi;
		d_step {
			n = 0; m = 0; k = 0; a = 0; c = 0; u = 0; returns = 0;
			free = 0; units = 0; first = 0; who = 0; again = 0;
			sort();
			x = 0; y = 0
		}
	}
	od
}
