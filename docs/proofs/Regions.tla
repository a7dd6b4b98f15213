------------------------------ MODULE Regions ------------------------------
(* A limit over several regions (docs/operating/regions.md), at the level of the proof of its bound: each
   region admits up to a ceiling by a state of its own, and takes units out of that state which
   another region has set aside before. Nothing else is ever told of a loan. The network delays,
   reorders and loses; regions borrow of each other in circles, too.

   The limit is one that weighs a unit by its age alone, and never more the older it is, as in
   Lease.tla. Init chooses the weights, so one run goes through all of them. What regions tell each
   other of what they used has no part in this: hearing can only refuse.

   There is no bound on time: instants are ticks from now, and a tick is the resolution of the
   clock. README.md beside this file says what TLC found. *)
EXTENDS Integers, FiniteSets, Bags, TLC

CONSTANTS
    Regions, \* the regions
    Ceiling, \* units that each admits by itself
    W,       \* ticks for which a unit can count
    E,       \* length of a generation: a loan ends E to 2E ticks after it was granted
    Net,     \* answers under way at once
    Top      \* weight of a unit that has just been used

ASSUME /\ {W, E, Net, Top, Ceiling} \subseteq Nat \ {0}
       /\ W > 1

VARIABLES
    weight, \* of a unit by its age; it never changes
    own,    \* what each region counts: units by age
    true,   \* what all regions truly admitted: units by age
    out,    \* what each region has lent, by the ticks until it ends; at 0 it is due to be charged
    msgs    \* a bag of answers on their way to borrowers

vars == <<weight, own, true, out, msgs>>

Ages == 0 .. W - 1
Ends == 0 .. 2 * E
Answers == [to: Regions, end: Ends \ {0}, units: 1 .. Ceiling]

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET x == CHOOSE x \in S : TRUE IN f[x] + Sum(f, S \ {x})

Load(units) == Sum([a \in Ages |-> units[a] * weight[a]], Ages)
Out(r) == Sum(out[r], Ends)
Most == Ceiling * Top

\* Units for which a region has room. A part of a unit is none.
Room(r) == LET left == Most - Out(r) * Top - Load(own[r]) IN IF left < 0 THEN 0 ELSE left \div Top

Init ==
    /\ weight \in {w \in [Ages -> 0 .. Top] : w[0] = Top /\ \A a \in Ages \ {0} : w[a] <= w[a - 1]}
    /\ own = [r \in Regions |-> [a \in Ages |-> 0]]
    /\ true = [a \in Ages |-> 0]
    /\ out = [r \in Regions |-> [e \in Ends |-> 0]]
    /\ msgs = EmptyBag

\* A region charges what is due before it does anything else.
Rolled(r) == out[r][0] = 0

Roll(r) ==
    /\ ~Rolled(r)
    \* As of the last instant of the loan, which was a tick ago when it is due.
    /\ own' = [own EXCEPT ![r][1] = @ + out[r][0]]
    /\ out' = [out EXCEPT ![r][0] = 0]
    /\ UNCHANGED <<weight, true, msgs>>

Admit(r) ==
    /\ Rolled(r)
    /\ Room(r) > 0
    /\ own' = [own EXCEPT ![r][0] = @ + 1]
    /\ true' = [true EXCEPT ![0] = @ + 1]
    /\ UNCHANGED <<weight, out, msgs>>

\* A region sets units aside for another one, and the answer goes on its way.
Lend(r) ==
    /\ Rolled(r)
    /\ BagCardinality(msgs) < Net
    /\ \E n \in 1 .. Room(r), e \in E .. 2 * E, s \in Regions \ {r} :
        /\ out' = [out EXCEPT ![r][e] = @ + n]
        /\ msgs' = msgs (+) SetToBag({[to |-> s, end |-> e, units |-> n]})
    /\ UNCHANGED <<weight, own, true>>

\* Back takes n units out of a state, the newest first.
RECURSIVE Back(_, _, _)
Back(units, n, a) ==
    IF n = 0 \/ a = W THEN units
    ELSE LET x == IF units[a] < n THEN units[a] ELSE n IN Back([units EXCEPT ![a] = @ - x], n - x, a + 1)

\* The answer arrives before the loan has ended.
Arrive(m) ==
    /\ Rolled(m.to)
    /\ own' = [own EXCEPT ![m.to] = Back(@, m.units, 0)]
    /\ msgs' = msgs (-) SetToBag({m})
    /\ UNCHANGED <<weight, true, out>>

\* It is lost, or arrives too late to be heeded, or its borrower has died.
Lose(m) ==
    /\ msgs' = msgs (-) SetToBag({m})
    /\ UNCHANGED <<weight, own, true, out>>

\* Time passes when all that is due has been charged: a region that does so later charges as of the
\* same instant.
Older(units) == [a \in Ages |-> IF a = 0 THEN 0 ELSE units[a - 1]]
Sooner(ends) == [e \in Ends |-> IF e = 2 * E THEN 0 ELSE ends[e + 1]]

Tick ==
    /\ \A r \in Regions : Rolled(r)
    /\ own' = [r \in Regions |-> Older(own[r])]
    /\ true' = Older(true)
    /\ out' = [r \in Regions |-> Sooner(out[r])]
    /\ LET late == {m \in DOMAIN msgs : m.end = 1}
           rest == DOMAIN msgs \ late
       IN msgs' = [m \in {[k EXCEPT !.end = @ - 1] : k \in rest} |-> msgs[[m EXCEPT !.end = @ + 1]]]
    /\ UNCHANGED weight

Next ==
    \/ Tick
    \/ \E r \in Regions : Roll(r) \/ Admit(r) \/ Lend(r)
    \/ \E m \in DOMAIN msgs : Arrive(m) \/ Lose(m)

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Regions)

TypeOK ==
    /\ weight \in [Ages -> 0 .. Top]
    /\ own \in [Regions -> [Ages -> Nat]]
    /\ true \in [Ages -> Nat]
    /\ out \in [Regions -> [Ends -> Nat]]
    /\ IsABag(msgs) /\ DOMAIN msgs \subseteq Answers

\* R1: what a region counts and what it has lent is within its ceiling.
Within == \A r \in Regions : Load(own[r]) + Out(r) * Top <= Most

Charged == Sum([r \in Regions |-> Load(own[r])], Regions) + Top * Sum([r \in Regions |-> Out(r)], Regions)

\* R2: what is true is charged or out somewhere.
Covered == Load(true) <= Charged

\* The guarantee: all regions together admit no more than their ceilings come to.
Bound == Load(true) <= Cardinality(Regions) * Most
=============================================================================
