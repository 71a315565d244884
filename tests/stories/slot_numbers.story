# Each slot has a number from 0 to N−1, the smallest that is free.

== A grant gets the smallest free number
store only: the command line has no options for this yet

A slot gpu=3
----
granted
gpu: A slot of 3 t1

B slot gpu=3
----
granted
gpu: A slot of 3 t1; B slot of 3 t2

C slot gpu=3
----
granted
gpu: A slot of 3 t1; B slot of 3 t2; C slot of 3 t3

slots of A
----
0
gpu: A slot of 3 t1; B slot of 3 t2; C slot of 3 t3

slots of B
----
1
gpu: A slot of 3 t1; B slot of 3 t2; C slot of 3 t3

slots of C
----
2
gpu: A slot of 3 t1; B slot of 3 t2; C slot of 3 t3

B releases
----
done
gpu: A slot of 3 t1; C slot of 3 t3

D slot gpu=3
----
granted
gpu: A slot of 3 t1; C slot of 3 t3; D slot of 3 t4

slots of D
----
1
gpu: A slot of 3 t1; C slot of 3 t3; D slot of 3 t4

== A waiter gets the number that was freed
store only: the command line has no options for this yet

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2
----
granted
gpu: A slot of 2 t1; B slot of 2 t2

C slot gpu=2
----
waiting
gpu: A slot of 2 t1; B slot of 2 t2; C slot of 2 waits 1st

A releases
----
done
gpu: B slot of 2 t2; C slot of 2 t3

slots of C
----
0
gpu: B slot of 2 t2; C slot of 2 t3

== A share has the number of the slot above it
store only: the command line has no options for this yet

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2
----
granted
gpu: A slot of 2 t1; B slot of 2 t2

C slot gpu=2 below B
----
granted
gpu: A slot of 2 t1; B slot of 2 t2; C slot of 2 t2

slots of C
----
1
gpu: A slot of 2 t1; B slot of 2 t2; C slot of 2 t2

B releases
----
done
gpu: A slot of 2 t1; C slot of 2 t2

slots of C
----
1
gpu: A slot of 2 t1; C slot of 2 t2

D slot gpu=2
----
waiting
gpu: A slot of 2 t1; C slot of 2 t2; D slot of 2 waits 1st

slots of A
----
0
gpu: A slot of 2 t1; C slot of 2 t2; D slot of 2 waits 1st

== Shares of a released slot keep its number until both have ended
store only: the command line has no options for this yet

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2 below A
----
granted
gpu: A slot of 2 t1; B slot of 2 t1

C slot gpu=2 below A
----
granted
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t1

A releases
----
done
gpu: B slot of 2 t1; C slot of 2 t1

D slot gpu=2
----
waiting
gpu: B slot of 2 t1; C slot of 2 t1; D slot of 2 waits 1st

B releases
----
done
gpu: C slot of 2 t1; D slot of 2 t2

slots of C
----
0
gpu: C slot of 2 t1; D slot of 2 t2

slots of D
----
1
gpu: C slot of 2 t1; D slot of 2 t2

C releases
----
done
gpu: D slot of 2 t2

E slot gpu=2
----
granted
gpu: D slot of 2 t2; E slot of 2 t3

slots of E
----
0
gpu: D slot of 2 t2; E slot of 2 t3

== A request with several slots has a number for each
store only: the command line has no options for this yet

A slot a=2
----
granted
a: A slot of 2 t1

B slot a=2 + slot b=2
----
granted
a: A slot of 2 t1; B slot of 2 t2
b: B slot of 2 t1

slots of B
----
1, 0
a: A slot of 2 t1; B slot of 2 t2
b: B slot of 2 t1

== A request for several slots gets the smallest free numbers
store only: the command line has no options for this yet

A slot a=4
----
granted
a: A slot of 4 t1

B slot a=4
----
granted
a: A slot of 4 t1; B slot of 4 t2

A releases
----
done
a: B slot of 4 t2

C slot a=4:3
----
granted
a: B slot of 4 t2; C 3 slots of 4 t3

slots of C
----
0, 2, 3
a: B slot of 4 t2; C 3 slots of 4 t3

D slot a=4:2 below C
----
granted
a: B slot of 4 t2; C 3 slots of 4 t3; D 2 slots of 4 t3

slots of D
----
0, 2
a: B slot of 4 t2; C 3 slots of 4 t3; D 2 slots of 4 t3

== Each of the requests below several slots has other numbers
store only: the command line has no options for this yet

A slot a=4
----
granted
a: A slot of 4 t1

B slot a=4:3
----
granted
a: A slot of 4 t1; B 3 slots of 4 t2

C slot a=4 below B
----
granted
a: A slot of 4 t1; B 3 slots of 4 t2; C slot of 4 t2

D slot a=4 below B
----
granted
a: A slot of 4 t1; B 3 slots of 4 t2; C slot of 4 t2; D slot of 4 t2

slots of C
----
1
a: A slot of 4 t1; B 3 slots of 4 t2; C slot of 4 t2; D slot of 4 t2

slots of D
----
2
a: A slot of 4 t1; B 3 slots of 4 t2; C slot of 4 t2; D slot of 4 t2

E slot a=4 below C
----
granted
a: A slot of 4 t1; B 3 slots of 4 t2; C slot of 4 t2; D slot of 4 t2; E slot of 4 t2

slots of E
----
1
a: A slot of 4 t1; B 3 slots of 4 t2; C slot of 4 t2; D slot of 4 t2; E slot of 4 t2

C releases
----
done
a: A slot of 4 t1; B 3 slots of 4 t2; D slot of 4 t2; E slot of 4 t2

F slot a=4 below B
----
granted
a: A slot of 4 t1; B 3 slots of 4 t2; D slot of 4 t2; E slot of 4 t2; F slot of 4 t2

slots of F
----
3
a: A slot of 4 t1; B 3 slots of 4 t2; D slot of 4 t2; E slot of 4 t2; F slot of 4 t2

G slot a=4 below B
----
waiting
a: A slot of 4 t1; B 3 slots of 4 t2; D slot of 4 t2; E slot of 4 t2; F slot of 4 t2; G slot of 4 waits 1st

E releases
----
done
a: A slot of 4 t1; B 3 slots of 4 t2; D slot of 4 t2; F slot of 4 t2; G slot of 4 t2

slots of G
----
1
a: A slot of 4 t1; B 3 slots of 4 t2; D slot of 4 t2; F slot of 4 t2; G slot of 4 t2
