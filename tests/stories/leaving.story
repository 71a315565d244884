# In the embedded store a hold lives exactly as long as its process, and kill -9 frees it at once.
# An operator may take a live grant away.

== The death of a holder grants the next waiter

A write tree
----
granted
tree: A write t1

B write tree
----
waiting
tree: A write t1; B write waits 1st

C write tree
----
waiting
tree: A write t1; B write waits 1st; C write waits 2nd

A is killed
----
done
tree: B write t2; C write waits 1st

B is killed
----
done
tree: C write t3

== A holder dies while the queue is empty

A write tree
----
granted
tree: A write t1

B read config
----
granted
config: B read t1
tree: A write t1

A is killed
----
done
config: B read t1

C write tree no-wait
----
granted
config: B read t1
tree: C write t2

== A dead waiter blocks no session

A read tree
----
granted
tree: A read t1

B write tree
----
waiting
tree: A read t1; B write waits 1st

C read tree
----
waiting
tree: A read t1; B write waits 1st; C read waits 2nd

B is killed
----
done
tree: A read t1; C read t2

== A waiter dies at the end of the queue

A read tree
----
granted
tree: A read t1

B write tree
----
waiting
tree: A read t1; B write waits 1st

B is killed
----
done
tree: A read t1

C read tree no-wait
----
granted
tree: A read t1; C read t2

== One of several holders dies

A read tree
----
granted
tree: A read t1

B read tree
----
granted
tree: A read t1; B read t2

C write tree
----
waiting
tree: A read t1; B read t2; C write waits 1st

A is killed
----
done
tree: B read t2; C write waits 1st

B is killed
----
done
tree: C write t3

== A holder of several resources dies

A write config + write db
----
granted
config: A write t1
db: A write t1

B read config
----
waiting
config: A write t1; B read waits 1st
db: A write t1

C read db
----
waiting
config: A write t1; B read waits 1st
db: A write t1; C read waits 1st

A is killed
----
done
config: B read t2
db: C read t2

== A nested hold survives the death of its ancestor

A prewrite tree
----
granted
tree: A prewrite t1

B write tree below A
----
granted
tree: A prewrite t1; B write t2

C prewrite tree
----
waiting
tree: A prewrite t1; B write t2; C prewrite waits 1st

A is killed
----
done
tree: B write t2; C prewrite waits 1st

B is killed
----
done
tree: C prewrite t3

== A holder of a slot dies

A slot gpu=1
----
granted
gpu: A slot of 1 t1

B slot gpu=1
----
waiting
gpu: A slot of 1 t1; B slot of 1 waits 1st

A is killed
----
done
gpu: B slot of 1 t2

B is killed
----
done
free

C slot gpu=2
----
granted
gpu: C slot of 2 t3

== A break grants the next waiter

A write tree
----
granted
tree: A write t1

B write tree
----
waiting
tree: A write t1; B write waits 1st

break tree
----
broke A
tree: B write t2

== A break takes away all grants on the resource, nested ones included, and no others

A prewrite tree
----
granted
tree: A prewrite t1

B read tree below A
----
granted
tree: A prewrite t1; B read t1

C read tree [5,6]
----
granted
tree: A prewrite t1; B read t1; C read [5,6] t2

D read config
----
granted
config: D read t1
tree: A prewrite t1; B read t1; C read [5,6] t2

E write tree
----
waiting
config: D read t1
tree: A prewrite t1; B read t1; C read [5,6] t2; E write waits 1st

break tree
----
broke A, B, C
config: D read t1
tree: E write t3

== A broken session loses all claims of its request

A write config + write db
----
granted
config: A write t1
db: A write t1

B read db
----
waiting
config: A write t1
db: A write t1; B read waits 1st

break config
----
broke A
db: B read t2

== A break without a holder changes nothing

break tree
----
broke no session
free

A read config
----
granted
config: A read t1

break tree
----
broke no session
config: A read t1
