# A holder can exchange an interval for a smaller one inside it, or lower its mode. There is no gap,
# and the waiters that the change unblocks are granted in the same step. A hold never grows, except
# by an upgrade.

== A shrink grants the waiters for the freed part

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree [5,6]
----
waiting
tree: A write [0,10] t1; B write [5,6] waits 1st

C read tree [3,4]
----
waiting
tree: A write [0,10] t1; B write [5,6] waits 1st; C read [3,4] waits 2nd

D read tree [8,9]
----
waiting
tree: A write [0,10] t1; B write [5,6] waits 1st; C read [3,4] waits 2nd; D read [8,9] waits 3rd

A shrinks tree to [0,4]
----
done
tree: A write [0,4] t1; B write [5,6] t2; D read [8,9] t3; C read [3,4] waits 1st

A shrinks tree to [1,2]
----
done
tree: A write [1,2] t1; B write [5,6] t2; D read [8,9] t3; C read [3,4] t4

== A waiter whose interval still touches the shrunk one stays blocked

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree [5,6]
----
waiting
tree: A write [0,10] t1; B write [5,6] waits 1st

A shrinks tree to [0,5]
----
done
tree: A write [0,5] t1; B write [5,6] waits 1st

A shrinks tree to [0,5)
----
done
tree: A write [0,5) t1; B write [5,6] t2

== A claim on the freed part stays behind an earlier waiter that it conflicts with

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree
----
waiting
tree: A write [0,10] t1; B write waits 1st

C read tree [8,9]
----
waiting
tree: A write [0,10] t1; B write waits 1st; C read [8,9] waits 2nd

A shrinks tree to [0,4]
----
done
tree: A write [0,4] t1; B write waits 1st; C read [8,9] waits 2nd

== A whole hold shrinks to an interval

A write tree
----
granted
tree: A write t1

B read tree [1,inf]
----
waiting
tree: A write t1; B read [1,inf] waits 1st

A shrinks tree to [-inf,1)
----
done
tree: A write [-inf,1) t1; B read [1,inf] t2

== A shrink cannot extend a hold on either side

A write tree [0,1]
----
granted
tree: A write [0,1] t1

A shrinks tree to [0,2]
----
refused: [0,2] is not inside what this session holds of 'tree': a hold can only shrink, 'rlock inspect' shows it
tree: A write [0,1] t1

A shrinks tree to [-1/1000,1]
----
refused: [-1/1000,1] is not inside what this session holds of 'tree': a hold can only shrink, 'rlock inspect' shows it
tree: A write [0,1] t1

A shrinks tree to [5,6]
----
refused: [5,6] is not inside what this session holds of 'tree': a hold can only shrink, 'rlock inspect' shows it
tree: A write [0,1] t1

A shrinks tree to (0,1)
----
done
tree: A write (0,1) t1

A shrinks tree to [0,1)
----
refused: [0,1) is not inside what this session holds of 'tree': a hold can only shrink, 'rlock inspect' shows it
tree: A write (0,1) t1

== A write is lowered to a prewrite, and then to a read

A write tree
----
granted
tree: A write t1

B read tree
----
waiting
tree: A write t1; B read waits 1st

C prewrite tree
----
waiting
tree: A write t1; B read waits 1st; C prewrite waits 2nd

D write tree
----
waiting
tree: A write t1; B read waits 1st; C prewrite waits 2nd; D write waits 3rd

A downgrades tree to prewrite
----
done
tree: A prewrite t1; B read t2; C prewrite waits 1st; D write waits 2nd

A downgrades tree to read
----
done
tree: A read t1; B read t2; C prewrite t3; D write waits 1st

== A write is lowered to a read

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B prewrite tree [0,1]
----
waiting
tree: A write [0,10] t1; B prewrite [0,1] waits 1st

C write tree [5,6]
----
waiting
tree: A write [0,10] t1; B prewrite [0,1] waits 1st; C write [5,6] waits 2nd

A downgrades tree to read
----
done
tree: A read [0,10] t1; B prewrite [0,1] t2; C write [5,6] waits 1st

== A downgrade from read to prewrite is refused

A read tree
----
granted
tree: A read t1

A downgrades tree to prewrite
----
refused: what this session holds of 'tree' can't be lowered from read to prewrite: a hold is lowered from write to prewrite or read, or from prewrite to read
tree: A read t1

A downgrades tree to read
----
done
tree: A read t1

== A downgrade from prewrite to write is refused

A prewrite tree
----
granted
tree: A prewrite t1

A downgrades tree to write
----
refused: what this session holds of 'tree' can't be lowered from prewrite to write: a hold is lowered from write to prewrite or read, or from prewrite to read
tree: A prewrite t1

== A slot can neither shrink nor be lowered

A slot gpu=2
----
granted
gpu: A slot of 2 t1

A shrinks gpu to [0,1]
----
refused: this session holds a slot of 'gpu', which has no parts to give up
gpu: A slot of 2 t1

A downgrades gpu to read
----
refused: what this session holds of 'gpu' can't be lowered from slot to read: a hold is lowered from write to prewrite or read, or from prewrite to read
gpu: A slot of 2 t1

== A downgrade of one of several resources leaves the others unchanged

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

A downgrades db to read
----
done
config: A write t1; B read waits 1st
db: A read t1; C read t2

A shrinks config to [0,1]
----
done
config: A write [0,1] t1; B read waits 1st
db: A read t1; C read t2

== A shrink of the ancestor leaves the hold of a child unchanged

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree [5,6] below A
----
granted
tree: A write [0,10] t1; B write [5,6] t1

C read tree [5,9]
----
waiting
tree: A write [0,10] t1; B write [5,6] t1; C read [5,9] waits 1st

A shrinks tree to [0,4]
----
done
tree: A write [0,4] t1; B write [5,6] t1; C read [5,9] waits 1st

B releases
----
done
tree: A write [0,4] t1; C read [5,9] t2

== A downgrade of the ancestor leaves the hold of a child unchanged

A write tree
----
granted
tree: A write t1

B write tree below A
----
granted
tree: A write t1; B write t1

R read tree
----
waiting
tree: A write t1; B write t1; R read waits 1st

A downgrades tree to read
----
done
tree: A read t1; B write t1; R read waits 1st

C write tree below B
----
granted
tree: A read t1; B write t1; C write t1; R read waits 1st

D write tree below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: A read t1; B write t1; C write t1; R read waits 1st

C releases
----
done
tree: A read t1; B write t1; R read waits 1st

B releases
----
done
tree: A read t1; R read t2

E write tree below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: A read t1; R read t2

== The children of a shrunk or lowered ancestor keep what they hold and pass it on

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree [0,10] below A
----
granted
tree: A write [0,10] t1; B write [0,10] t1

A shrinks tree to [0,1]
----
done
tree: A write [0,1] t1; B write [0,10] t1

A downgrades tree to read
----
done
tree: A read [0,1] t1; B write [0,10] t1

C write tree [5,6] below B
----
granted
tree: A read [0,1] t1; B write [0,10] t1; C write [5,6] t1

C releases
----
done
tree: A read [0,1] t1; B write [0,10] t1

B releases
----
done
tree: A read [0,1] t1

D write tree [5,6] below A
----
granted
tree: A read [0,1] t1; D write [5,6] t2

E write tree [0,1] below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: A read [0,1] t1; D write [5,6] t2

== A shrink below a nested hold changes the nested hold alone

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree [0,10] below A
----
granted
tree: A write [0,10] t1; B write [0,10] t1

R read tree [8,9]
----
waiting
tree: A write [0,10] t1; B write [0,10] t1; R read [8,9] waits 1st

B shrinks tree to [0,4]
----
done
tree: A write [0,10] t1; B write [0,4] t1; R read [8,9] waits 1st

B downgrades tree to read
----
done
tree: A write [0,10] t1; B read [0,4] t1; R read [8,9] waits 1st

A shrinks tree to [0,4]
----
done
tree: A write [0,4] t1; B read [0,4] t1; R read [8,9] t2

== While an upgrade waits, the part that it relies on cannot be given up

A prewrite tree [0,10]
----
granted
tree: A prewrite [0,10] t1

R read tree [5,6]
----
granted
tree: A prewrite [0,10] t1; R read [5,6] t2

B write tree [5,6] below A
----
waiting
tree: A prewrite [0,10] t1; R read [5,6] t2; B write [5,6] waits 1st

A downgrades tree to read
----
refused: a nested rlock waits for 'tree' on the strength of this hold: let it finish or end it first
tree: A prewrite [0,10] t1; R read [5,6] t2; B write [5,6] waits 1st

A shrinks tree to [0,5]
----
refused: a nested rlock waits for 'tree' on the strength of this hold: let it finish or end it first
tree: A prewrite [0,10] t1; R read [5,6] t2; B write [5,6] waits 1st

A shrinks tree to [4,7]
----
done
tree: A prewrite [4,7] t1; R read [5,6] t2; B write [5,6] waits 1st

R releases
----
done
tree: A prewrite [4,7] t1; B write [5,6] t3

== A change is refused although another hold around the waiter covers it

P prewrite tree [0,10]
----
granted
tree: P prewrite [0,10] t1

A write tree [0,10] below P
----
granted
tree: P prewrite [0,10] t1; A write [0,10] t2

B read tree [5,6] below A
----
granted
tree: P prewrite [0,10] t1; A write [0,10] t2; B read [5,6] t2

C write tree [5,6] below A
----
waiting
tree: P prewrite [0,10] t1; A write [0,10] t2; B read [5,6] t2; C write [5,6] waits 1st

A shrinks tree to [0,4]
----
refused: a nested rlock waits for 'tree' on the strength of this hold: let it finish or end it first
tree: P prewrite [0,10] t1; A write [0,10] t2; B read [5,6] t2; C write [5,6] waits 1st

A downgrades tree to read
----
refused: a nested rlock waits for 'tree' on the strength of this hold: let it finish or end it first
tree: P prewrite [0,10] t1; A write [0,10] t2; B read [5,6] t2; C write [5,6] waits 1st

A downgrades tree to prewrite
----
done
tree: P prewrite [0,10] t1; A prewrite [0,10] t2; B read [5,6] t2; C write [5,6] waits 1st

B releases
----
done
tree: P prewrite [0,10] t1; A prewrite [0,10] t2; C write [5,6] t3

== Every interval that contains the new one shrinks, and the others stay

A write tree [0,10] + read tree [5,15] + write tree [20,30]
----
granted
tree: A write [0,10] t1; A read [5,15] t1; A write [20,30] t1

B write tree [0,1]
----
waiting
tree: A write [0,10] t1; A read [5,15] t1; A write [20,30] t1; B write [0,1] waits 1st

C write tree [12,13]
----
waiting
tree: A write [0,10] t1; A read [5,15] t1; A write [20,30] t1; B write [0,1] waits 1st; C write [12,13] waits 2nd

D write tree [25,26]
----
waiting
tree: A write [0,10] t1; A read [5,15] t1; A write [20,30] t1; B write [0,1] waits 1st; C write [12,13] waits 2nd; D write [25,26] waits 3rd

A shrinks tree to [6,7]
----
done
tree: A write [6,7] t1; A read [6,7] t1; A write [20,30] t1; B write [0,1] t2; C write [12,13] t3; D write [25,26] waits 1st

A shrinks tree to [22,30]
----
done
tree: A write [6,7] t1; A read [6,7] t1; A write [22,30] t1; B write [0,1] t2; C write [12,13] t3; D write [25,26] waits 1st

A shrinks tree to [27,28]
----
done
tree: A write [6,7] t1; A read [6,7] t1; A write [27,28] t1; B write [0,1] t2; C write [12,13] t3; D write [25,26] t4

== Two intervals that only together contain the new one do not shrink

A write tree [0,5] + write tree [5,10]
----
granted
tree: A write [0,5] t1; A write [5,10] t1

A shrinks tree to [3,8]
----
refused: [3,8] is not inside what this session holds of 'tree': a hold can only shrink, 'rlock inspect' shows it
tree: A write [0,5] t1; A write [5,10] t1

A shrinks tree to [5,5]
----
done
tree: A write [5,5] t1; A write [5,5] t1

== A slot beside intervals of one request stays whole
model only: the command line takes no slot beside another mode

A slot tree=2 + read tree [0,10]
----
granted
tree: A slot of 2 t1; A read [0,10] t1

A shrinks tree to [1,2]
----
done
tree: A slot of 2 t1; A read [1,2] t1

A shrinks tree to [5,6]
----
refused: this session holds a slot of 'tree', which has no parts to give up
tree: A slot of 2 t1; A read [1,2] t1

== A change without a hold is refused, and a change by an ended session is lost
model only: the command line reports the reply of the enclosing rlock

A write tree
----
granted
tree: A write t1

A shrinks db to [0,1]
----
refused: this session holds nothing of 'db': name what it holds with --resource
tree: A write t1

A downgrades db to read
----
refused: this session holds nothing of 'db': name what it holds with --resource
tree: A write t1

A releases
----
done
free

A shrinks tree to [0,1]
----
lost
free

A downgrades tree to read
----
lost
free
