# A request of a job supersedes the waiters of the same job: the newest one wins.

== The newest request of a job takes the place of the others
store only: the command line has no options for this yet

A write tree as deploy
----
granted
tree: A write t1

B write tree as deploy supersede
----
waiting
tree: A write t1; B write waits 1st

C write tree as deploy supersede
----
waiting
tree: A write t1; C write waits 1st

D write tree as deploy
----
waiting
tree: A write t1; C write waits 1st; D write waits 2nd

E write tree as deploy supersede
----
waiting
tree: A write t1; E write waits 1st

A releases
----
done
tree: E write t2

== Waiters of other jobs, and holders, stay
store only: the command line has no options for this yet

A write tree as deploy
----
granted
tree: A write t1

B write tree as deploy
----
waiting
tree: A write t1; B write waits 1st

C write tree as test
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd

D write tree as deploy supersede
----
waiting
tree: A write t1; C write waits 1st; D write waits 2nd

A releases
----
done
tree: C write t2; D write waits 1st

C releases
----
done
tree: D write t3

== What superseded waiters blocked is granted
store only: the command line has no options for this yet

A read tree as report
----
granted
tree: A read t1

B write tree as deploy
----
waiting
tree: A read t1; B write waits 1st

C read tree as report
----
waiting
tree: A read t1; B write waits 1st; C read waits 2nd

D write other as deploy supersede
----
granted
other: D write t1
tree: A read t1; B write waits 1st; C read waits 2nd

E write other + write tree as deploy supersede
----
waiting
other: D write t1; E write waits 1st
tree: A read t1; C read t2; E write waits 1st

== A request behind its own job only is granted at once
store only: the command line has no options for this yet

A read tree as deploy
----
granted
tree: A read t1

B write tree as deploy
----
waiting
tree: A read t1; B write waits 1st

C read tree as deploy supersede
----
granted
tree: A read t1; C read t2

== A busy request supersedes nobody
store only: the command line has no options for this yet

A write tree as deploy
----
granted
tree: A write t1

B write tree as deploy
----
waiting
tree: A write t1; B write waits 1st

C write tree as deploy supersede no-wait
----
busy
tree: A write t1; B write waits 1st

D write tree as test
----
waiting
tree: A write t1; B write waits 1st; D write waits 2nd

E write tree as deploy supersede max-waiting 1
----
busy
tree: A write t1; B write waits 1st; D write waits 2nd

F write tree as deploy supersede max-waiting 2
----
waiting
tree: A write t1; D write waits 1st; F write waits 2nd

== A request without a wait supersedes if it is granted
store only: the command line has no options for this yet

A read tree [0,1] as deploy
----
granted
tree: A read [0,1] t1

B write tree [0,1] as deploy
----
waiting
tree: A read [0,1] t1; B write [0,1] waits 1st

C write tree [2,3] as deploy supersede no-wait
----
granted
tree: A read [0,1] t1; C write [2,3] t2

== A request without a wait does not wait for those that it supersedes
store only: the command line has no options for this yet

A read tree as report
----
granted
tree: A read t1

B write tree as deploy
----
waiting
tree: A read t1; B write waits 1st

C read tree as deploy no-wait
----
busy
tree: A read t1; B write waits 1st

D read tree as deploy supersede no-wait
----
granted
tree: A read t1; D read t2

E write tree as deploy
----
waiting
tree: A read t1; D read t2; E write waits 1st

F write tree as test
----
waiting
tree: A read t1; D read t2; E write waits 1st; F write waits 2nd

G read tree as deploy supersede no-wait
----
busy
tree: A read t1; D read t2; E write waits 1st; F write waits 2nd

F releases
----
done
tree: A read t1; D read t2; E write waits 1st

H read tree as deploy supersede no-wait
----
granted
tree: A read t1; D read t2; H read t3

== Slots for which superseded waiters ask are free for a request without a wait
store only: the command line has no options for this yet

A slot gpu=3:2
----
granted
gpu: A 2 slots of 3 t1

B slot gpu=3:2 below A
----
granted
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1

C slot gpu=3 below A as deploy
----
waiting
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1; C slot of 3 waits 1st

D slot gpu=3 below A as deploy supersede no-wait
----
busy
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1; C slot of 3 waits 1st

E slot gpu=3
----
granted
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1; E slot of 3 t2; C slot of 3 waits 1st

F slot gpu=3:3 as deploy
----
waiting
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1; E slot of 3 t2; C slot of 3 waits 1st; F 3 slots of 3 waits 2nd

E releases
----
done
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1; C slot of 3 waits 1st; F 3 slots of 3 waits 2nd

G slot gpu=3 as deploy supersede no-wait
----
granted
gpu: A 2 slots of 3 t1; B 2 slots of 3 t1; G slot of 3 t3

== The waiters for any of several names are superseded
store only: the command line has no options for this yet

A write a + write b as deploy
----
granted
a: A write t1
b: A write t1

B write a as deploy
----
waiting
a: A write t1; B write waits 1st
b: A write t1

C write b + write c as deploy
----
waiting
a: A write t1; B write waits 1st
b: A write t1; C write waits 1st
c: C write waits 1st

D write c as deploy
----
waiting
a: A write t1; B write waits 1st
b: A write t1; C write waits 1st
c: C write waits 1st; D write waits 2nd

E write a + write b as deploy supersede
----
waiting
a: A write t1; E write waits 1st
b: A write t1; E write waits 1st
c: D write t1

== A slot of a superseded waiter goes to the next
store only: the command line has no options for this yet

A slot gpu=2:1 as train
----
granted
gpu: A slot of 2 t1

B slot gpu=2:2 as train
----
waiting
gpu: A slot of 2 t1; B 2 slots of 2 waits 1st

C slot gpu=2 as test
----
waiting
gpu: A slot of 2 t1; B 2 slots of 2 waits 1st; C slot of 2 waits 2nd

D slot gpu=2 as train supersede
----
waiting
gpu: A slot of 2 t1; C slot of 2 t2; D slot of 2 waits 1st

== An ancestor that waits is not superseded
store only: the command line has no options for this yet

A write tree as other
----
granted
tree: A write t1

B write tree as deploy
----
waiting
tree: A write t1; B write waits 1st

C write tree as deploy supersede below B
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd
