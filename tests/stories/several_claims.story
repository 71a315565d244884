# A request with several claims is atomic: all claims are granted together or none is, and the
# request holds nothing while it waits.

== Several claims are granted and released together

A read config + write db
----
granted
config: A read t1
db: A write t1

B read config no-wait
----
granted
config: A read t1; B read t2
db: A write t1

C read db no-wait
----
busy
config: A read t1; B read t2
db: A write t1

A releases
----
done
config: B read t2

== A waiting request holds nothing

A write db
----
granted
db: A write t1

B read config + write db
----
waiting
config: B read waits 1st
db: A write t1; B write waits 1st

C read config
----
granted
config: C read t1; B read waits 1st
db: A write t1; B write waits 1st

A releases
----
done
config: C read t1; B read t2
db: B write t2

== A waiting request has a place in the queue of each of its resources

A write db
----
granted
db: A write t1

B write config + write db
----
waiting
config: B write waits 1st
db: A write t1; B write waits 1st

C read config no-wait
----
busy
config: B write waits 1st
db: A write t1; B write waits 1st

D read config
----
waiting
config: B write waits 1st; D read waits 2nd
db: A write t1; B write waits 1st

A releases
----
done
config: B write t1; D read waits 1st
db: B write t2

B releases
----
done
config: D read t2

== Two requests with their claims in opposite order cannot deadlock

A write x
----
granted
x: A write t1

B write x + write y
----
waiting
x: A write t1; B write waits 1st
y: B write waits 1st

C write y + write x
----
waiting
x: A write t1; B write waits 1st; C write waits 2nd
y: B write waits 1st; C write waits 2nd

A releases
----
done
x: B write t2; C write waits 1st
y: B write t1; C write waits 1st

B releases
----
done
x: C write t3
y: C write t2

== A request waits until all of its claims are unblocked

A write x
----
granted
x: A write t1

B write y
----
granted
x: A write t1
y: B write t1

C write x + write y
----
waiting
x: A write t1; C write waits 1st
y: B write t1; C write waits 1st

A releases
----
done
x: C write waits 1st
y: B write t1; C write waits 1st

D read x no-wait
----
busy
x: C write waits 1st
y: B write t1; C write waits 1st

B releases
----
done
x: C write t2
y: C write t2

== A request without a wait gets all of its claims or none

A write db
----
granted
db: A write t1

B write config + write db no-wait
----
busy
db: A write t1

C write config + read other no-wait
----
granted
config: C write t1
db: A write t1
other: C read t1

== A request that cancels leaves every queue

A write db
----
granted
db: A write t1

B write config + write db
----
waiting
config: B write waits 1st
db: A write t1; B write waits 1st

C read config
----
waiting
config: B write waits 1st; C read waits 2nd
db: A write t1; B write waits 1st

B cancels
----
done
config: C read t1
db: A write t1

== If one claim is refused, the whole request is refused

A read db
----
granted
db: A read t1

B write config + write db below A
----
refused: an enclosing rlock holds 'db' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
db: A read t1

== A request may combine a slot and a write

A slot gpu=1 + read data
----
granted
data: A read t1
gpu: A slot of 1 t1

B slot gpu=1 + write log
----
waiting
data: A read t1
gpu: A slot of 1 t1; B slot of 1 waits 1st
log: B write waits 1st

A releases
----
done
gpu: B slot of 1 t2
log: B write t1

== The claims of one request do not conflict with each other

A write tree [0,2] + read tree [1,3]
----
granted
tree: A write [0,2] t1; A read [1,3] t1

B read tree [2.5,4] no-wait
----
granted
tree: A write [0,2] t1; A read [1,3] t1; B read [2.5,4] t2

C read tree [0,1] no-wait
----
busy
tree: A write [0,2] t1; A read [1,3] t1; B read [2.5,4] t2

D write tree [3,3] no-wait
----
busy
tree: A write [0,2] t1; A read [1,3] t1; B read [2.5,4] t2

== Several intervals of one resource leave the span between them free

A write tree [0,1] + write tree [5,6]
----
granted
tree: A write [0,1] t1; A write [5,6] t1

B write tree [2,3] no-wait
----
granted
tree: A write [0,1] t1; A write [5,6] t1; B write [2,3] t2

C read tree [3.5,4] + write tree [6,7]
----
waiting
tree: A write [0,1] t1; A write [5,6] t1; B write [2,3] t2; C read [3.5,4] waits 1st; C write [6,7] waits 1st

D write tree [4,4.5]
----
waiting
tree: A write [0,1] t1; A write [5,6] t1; B write [2,3] t2; C read [3.5,4] waits 1st; C write [6,7] waits 1st; D write [4,4.5] waits 2nd

A releases
----
done
tree: B write [2,3] t2; C read [3.5,4] t3; C write [6,7] t3; D write [4,4.5] waits 1st
