------------------------------- MODULE Lease -------------------------------
(* Units lent ahead (docs/how-it-works/algorithms.md, "Units that are lent ahead"), at the level of their proof:
   a store sets units aside for nodes, nodes use them and tell later, and what was never told
   counts as used when it ends. The network delays, reorders and loses.

   The limit may be any that weighs a unit by its age alone, and never more the older it is: a log
   (the whole weight until the unit leaves the window), a weight that fades, and whatever lies
   between. Init chooses the weights, so one run goes through all of them.

   There is no bound on time: instants are ticks from now, and a tick is the resolution of the
   clock. README.md beside this file says what TLC found. *)
EXTENDS Integers, FiniteSets, Bags, TLC

CONSTANTS
    Nodes,  \* the nodes
    N,      \* units that the limit admits
    W,      \* ticks for which a unit can count
    E,      \* length of a generation: a lease ends E to 2E ticks after it was granted
    Lent,   \* units that may be out at once
    Net,    \* messages under way at once
    Top     \* weight of a unit that has just been used

ASSUME /\ {N, W, E, Lent, Net, Top} \subseteq Nat \ {0}
       /\ W > 1

VARIABLES
    weight,   \* of a unit by its age; it never changes
    settled,  \* what the store has charged: units by age
    true,     \* what was truly admitted: units by age
    out,      \* units set aside, by the ticks until they end; at 0 they are due to be charged
    held,     \* what each node may use, and used but did not tell, by the ticks until it ends
    msgs      \* a bag of grants on their way to nodes, and of tellings on their way to the store

vars == <<weight, settled, true, out, held, msgs>>

Ages == 0 .. W - 1
Ends == 0 .. 2 * E
Held == [left: 0 .. Lent, used: 0 .. Lent]
Nothing == [e \in Ends \ {0} |-> [left |-> 0, used |-> 0]]

Grants == [kind: {"grant"}, node: Nodes, end: Ends, units: 1 .. Lent]
Tellings == [kind: {"telling"}, end: Ends, used: 0 .. Lent, back: 0 .. Lent]

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET x == CHOOSE x \in S : TRUE IN f[x] + Sum(f, S \ {x})

Load(units) == Sum([a \in Ages |-> units[a] * weight[a]], Ages)
Out == Sum(out, Ends)
Most == N * Top
True == Load(true)

\* Units for which there is room beside all that is charged and out, as floor(estimate) has it.
Room == N - Out - Load(settled) \div Top

Send(m) == msgs' = msgs (+) SetToBag({m})
Receive(m) == msgs' = msgs (-) SetToBag({m})

Init ==
    /\ weight \in {w \in [Ages -> 0 .. Top] : w[0] = Top /\ \A a \in Ages \ {0} : w[a] <= w[a - 1]}
    /\ settled = [a \in Ages |-> 0]
    /\ true = [a \in Ages |-> 0]
    /\ out = [e \in Ends |-> 0]
    /\ held = [n \in Nodes |-> Nothing]
    /\ msgs = EmptyBag

\* The store charges what is due before it does anything else.
Rolled == out[0] = 0

\* The store admits a request by itself.
Take ==
    /\ Rolled
    /\ Room >= 1
    /\ settled' = [settled EXCEPT ![0] = @ + 1]
    /\ true' = [true EXCEPT ![0] = @ + 1]
    /\ UNCHANGED <<weight, out, held, msgs>>

Grant(n, e, u) ==
    /\ Rolled
    /\ BagCardinality(msgs) < Net
    /\ u <= Room
    /\ u <= Lent - Out
    /\ out' = [out EXCEPT ![e] = @ + u]
    /\ Send([kind |-> "grant", node |-> n, end |-> e, units |-> u])
    /\ UNCHANGED <<weight, settled, true, held>>

\* A node hears of its units. What has ended is of no use.
Deliver(m) ==
    /\ m.kind = "grant"
    /\ Receive(m)
    /\ held' = IF m.end = 0 THEN held ELSE [held EXCEPT ![m.node][m.end].left = @ + m.units]
    /\ UNCHANGED <<weight, settled, true, out>>

Lose(m) ==
    /\ Receive(m)
    /\ UNCHANGED <<weight, settled, true, out, held>>

\* A node admits a request by itself.
Use(n, e) ==
    /\ held[n][e].left > 0
    /\ held' = [held EXCEPT ![n][e] = [left |-> @.left - 1, used |-> @.used + 1]]
    /\ true' = [true EXCEPT ![0] = @ + 1]
    /\ UNCHANGED <<weight, settled, out, msgs>>

\* A node takes what it tells out of its books, and sends it, once.
Tell(n, e, back) ==
    /\ BagCardinality(msgs) < Net
    /\ back <= held[n][e].left
    /\ held[n][e].used + back > 0
    /\ held' = [held EXCEPT ![n][e] = [left |-> @.left - back, used |-> 0]]
    /\ Send([kind |-> "telling", end |-> e, used |-> held[n][e].used, back |-> back])
    /\ UNCHANGED <<weight, settled, true, out>>

\* The store hears what became of units. What has ended is settled already: the end is the fence.
Apply(m) ==
    /\ m.kind = "telling"
    /\ Rolled
    /\ Receive(m)
    /\ IF m.end = 0
       THEN UNCHANGED <<settled, out>>
       ELSE /\ out' = [out EXCEPT ![m.end] = @ - m.used - m.back]
            /\ settled' = [settled EXCEPT ![0] = @ + m.used]
    /\ UNCHANGED <<weight, true, held>>

\* What was never told counts as used, as of the last tick at which it could be.
End ==
    /\ ~Rolled
    /\ settled' = [settled EXCEPT ![1] = @ + out[0]]
    /\ out' = [out EXCEPT ![0] = 0]
    /\ UNCHANGED <<weight, true, held, msgs>>

Crash(n) ==
    /\ held[n] # Nothing
    /\ held' = [held EXCEPT ![n] = Nothing]
    /\ UNCHANGED <<weight, settled, true, out, msgs>>

Older(units) == [a \in Ages |-> IF a = 0 THEN 0 ELSE units[a - 1]]
Sooner(f, none) == [e \in DOMAIN f |-> IF e = 2 * E THEN none ELSE f[e + 1]]
Closer(m) == [m EXCEPT !.end = IF @ = 0 THEN 0 ELSE @ - 1]

\* Two messages that now say the same are two in the bag.
Nearer(bag) ==
    LET later == {Closer(m) : m \in BagToSet(bag)}
    IN [c \in later |-> Sum(bag, {m \in BagToSet(bag) : Closer(m) = c})]

Tick ==
    /\ Rolled
    /\ settled' = Older(settled)
    /\ true' = Older(true)
    /\ out' = Sooner(out, 0)
    /\ held' = [n \in Nodes |-> Sooner(held[n], [left |-> 0, used |-> 0])]
    /\ msgs' = Nearer(msgs)
    /\ UNCHANGED weight

Next ==
    \/ Take
    \/ \E n \in Nodes, e \in E .. 2 * E, u \in 1 .. Lent : Grant(n, e, u)
    \/ \E m \in BagToSet(msgs) : Deliver(m) \/ Apply(m) \/ Lose(m)
    \/ \E n \in Nodes, e \in Ends \ {0} : Use(n, e) \/ \E back \in 0 .. Lent : Tell(n, e, back)
    \/ End
    \/ \E n \in Nodes : Crash(n)
    \/ Tick

Spec == Init /\ [][Next]_vars

TypeOK ==
    /\ settled \in [Ages -> 0 .. 2 * N]
    /\ true \in [Ages -> 0 .. 2 * N]
    /\ out \in [Ends -> 0 .. Lent]
    /\ held \in [Nodes -> [Ends \ {0} -> Held]]
    /\ BagToSet(msgs) \subseteq Grants \union Tellings

\* The guarantee: what is truly admitted is what the limit would admit without leases. As floor
\* (estimate) has it, less than a unit may be beyond.
Guarantee == True < Most + Top

\* What it follows from: I3, I1, and the promise of how much is out.
Dominated == True <= Load(settled) + Out * Top
Covered == Out + Load(settled) \div Top <= N
Bounded == Out <= Lent

\* For TLC: nodes differ in their names alone.
Symmetry == Permutations(Nodes)
=============================================================================
