# Two claims conflict when they name the same resource, their spans overlap, their modes clash, and neither belongs to the
# other's session or to an ancestor of it. The table of modes, row by row; who may not wait shows who conflicts.

== Beside a read everything may be but a write

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

== A prewrite is one at a time, beside reads and slots

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

== A write is alone

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

== Beside a slot everything may be but a write, and a slot as long as there is one

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

== Different resources have nothing to do with each other

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

== Who waits is granted by the same table

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
