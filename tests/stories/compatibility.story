# Two claims conflict when they name the same resource, their spans overlap, their modes clash, and
# neither session is a descendant of the other. The scenes show the table of modes row by row. A
# request with `no-wait` is busy exactly when it conflicts.

== A read clashes only with a write

A read tree
----
granted
tree: A read t1

B read tree no-wait
----
granted
tree: A read t1; B read t2

C prewrite tree no-wait
----
granted
tree: A read t1; B read t2; C prewrite t3

D write tree no-wait
----
busy
tree: A read t1; B read t2; C prewrite t3

E slot tree=2 no-wait
----
granted
tree: A read t1; B read t2; C prewrite t3; E slot of 2 t4

== A prewrite clashes with a prewrite and a write, but not with a read or a slot

A prewrite tree
----
granted
tree: A prewrite t1

B read tree no-wait
----
granted
tree: A prewrite t1; B read t2

C prewrite tree no-wait
----
busy
tree: A prewrite t1; B read t2

B releases
----
done
tree: A prewrite t1

D write tree no-wait
----
busy
tree: A prewrite t1

E slot tree=2 no-wait
----
granted
tree: A prewrite t1; E slot of 2 t3

== A write clashes with every mode

A write tree
----
granted
tree: A write t1

B read tree no-wait
----
busy
tree: A write t1

C prewrite tree no-wait
----
busy
tree: A write t1

D write tree no-wait
----
busy
tree: A write t1

E slot tree=2 no-wait
----
busy
tree: A write t1

== A slot clashes with a write, and with a slot when all slots are taken

A slot tree=2
----
granted
tree: A slot of 2 t1

B read tree no-wait
----
granted
tree: A slot of 2 t1; B read t2

C prewrite tree no-wait
----
granted
tree: A slot of 2 t1; B read t2; C prewrite t3

B releases
----
done
tree: A slot of 2 t1; C prewrite t3

C releases
----
done
tree: A slot of 2 t1

D write tree no-wait
----
busy
tree: A slot of 2 t1

E slot tree=2 no-wait
----
granted
tree: A slot of 2 t1; E slot of 2 t4

F slot tree=2 no-wait
----
busy
tree: A slot of 2 t1; E slot of 2 t4

== Claims on different resources do not conflict

A write tree
----
granted
tree: A write t1

B write db no-wait
----
granted
db: B write t1
tree: A write t1

C write Tree no-wait
----
granted
Tree: C write t1
db: B write t1
tree: A write t1

== A waiter is granted by the same table

A write tree
----
granted
tree: A write t1

B prewrite tree
----
waiting
tree: A write t1; B prewrite waits 1st

C read tree
----
waiting
tree: A write t1; B prewrite waits 1st; C read waits 2nd

D prewrite tree
----
waiting
tree: A write t1; B prewrite waits 1st; C read waits 2nd; D prewrite waits 3rd

E slot tree=1
----
waiting
tree: A write t1; B prewrite waits 1st; C read waits 2nd; D prewrite waits 3rd; E slot of 1 waits 4th

A releases
----
done
tree: B prewrite t2; C read t3; E slot of 1 t4; D prewrite waits 1st

B releases
----
done
tree: C read t3; E slot of 1 t4; D prewrite t5
