# These scenes show the table of docs/design.md#nesting row by row: a claim below ancestors that
# hold an overlapping span of the resource, without other sessions. A nested claim that an
# ancestor's hold includes has the ancestor's token.

== Below a read, a read is granted at once and other modes are not

A read tree
----
granted
tree: A read t1

B read tree below A
----
granted
tree: A read t1; B read t1

C prewrite tree below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become prewrite without risk of deadlock: claim --prewrite there instead
tree: A read t1; B read t1

D write tree below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: A read t1; B read t1

== Below a prewrite, a read and a prewrite are granted at once, and a write is an upgrade

A prewrite tree
----
granted
tree: A prewrite t1

B read tree below A
----
granted
tree: A prewrite t1; B read t1

B releases
----
done
tree: A prewrite t1

C prewrite tree below A
----
granted
tree: A prewrite t1; C prewrite t1

C releases
----
done
tree: A prewrite t1

D write tree below A
----
granted
tree: A prewrite t1; D write t2

== Below a write, every mode is granted at once

A write tree
----
granted
tree: A write t1

B read tree below A
----
granted
tree: A write t1; B read t1

B releases
----
done
tree: A write t1

C prewrite tree below A
----
granted
tree: A write t1; C prewrite t1

C releases
----
done
tree: A write t1

D write tree below A
----
granted
tree: A write t1; D write t1

== Below several ancestors, a hold that includes the claim decides

A write tree
----
granted
tree: A write t1

B read tree below A
----
granted
tree: A write t1; B read t1

C read tree below B
----
granted
tree: A write t1; B read t1; C read t1

C releases
----
done
tree: A write t1; B read t1

D write tree below B
----
granted
tree: A write t1; B read t1; D write t1

== An upgrade of an ancestor's prewrite is possible below a read in between

A prewrite tree
----
granted
tree: A prewrite t1

B read tree below A
----
granted
tree: A prewrite t1; B read t1

C write tree below B
----
granted
tree: A prewrite t1; B read t1; C write t2

D read tree below C
----
granted
tree: A prewrite t1; B read t1; C write t2; D read t2

== An ancestor without a hold of the resource has no effect

A read config
----
granted
config: A read t1

B write tree
----
granted
config: A read t1
tree: B write t1

C write tree below A
----
waiting
config: A read t1
tree: B write t1; C write waits 1st

D read tree below A no-wait
----
busy
config: A read t1
tree: B write t1; C write waits 1st

B releases
----
done
config: A read t1
tree: C write t2

== Siblings exclude each other and have the ancestor's token

A write tree
----
granted
tree: A write t1

B write tree below A
----
granted
tree: A write t1; B write t1

C write tree below A
----
waiting
tree: A write t1; B write t1; C write waits 1st

D read tree below A no-wait
----
busy
tree: A write t1; B write t1; C write waits 1st

B releases
----
done
tree: A write t1; C write t1

== The span of the ancestor must cover the span of the child

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree [2,3] below A
----
granted
tree: A write [0,10] t1; B write [2,3] t1

C write tree [5,12] below A
----
refused: an enclosing rlock holds [0,10] of 'tree', and [5,12] reaches past that: claim all of it there, or no more than that here
tree: A write [0,10] t1; B write [2,3] t1

D read tree [10,11] below A
----
refused: an enclosing rlock holds [0,10] of 'tree', and [10,11] reaches past that: claim all of it there, or no more than that here
tree: A write [0,10] t1; B write [2,3] t1

E write tree [0,10] below A no-wait
----
busy
tree: A write [0,10] t1; B write [2,3] t1

B releases
----
done
tree: A write [0,10] t1

F write tree [0,10] below A
----
granted
tree: A write [0,10] t1; F write [0,10] t1

== A read or a prewrite that reaches past the ancestor's span is refused, too

A read tree [0,10]
----
granted
tree: A read [0,10] t1

B read tree [5,12] below A
----
refused: an enclosing rlock holds [0,10] of 'tree', and [5,12] reaches past that: claim all of it there, or no more than that here
tree: A read [0,10] t1

C prewrite tree [20,30]
----
granted
tree: A read [0,10] t1; C prewrite [20,30] t2

D prewrite tree [25,35] below C
----
refused: an enclosing rlock holds [20,30] of 'tree', and [25,35] reaches past that: claim all of it there, or no more than that here
tree: A read [0,10] t1; C prewrite [20,30] t2

E write tree [25,35] below C
----
refused: an enclosing rlock holds [20,30] of 'tree', and [25,35] reaches past that: claim all of it there, or no more than that here
tree: A read [0,10] t1; C prewrite [20,30] t2

== A single hold must cover the claim: two holds that cover it together are not enough

A write tree [0,5]
----
granted
tree: A write [0,5] t1

B write tree (5,10] below A
----
granted
tree: A write [0,5] t1; B write (5,10] t2

C write tree [3,8] below B
----
refused: an enclosing rlock holds [0,5] of 'tree', and [3,8] reaches past that: claim all of it there, or no more than that here
tree: A write [0,5] t1; B write (5,10] t2

D write tree [3,4] below B
----
granted
tree: A write [0,5] t1; D write [3,4] t1; B write (5,10] t2

E write tree [6,7] below B
----
granted
tree: A write [0,5] t1; D write [3,4] t1; B write (5,10] t2; E write [6,7] t2

== Two intervals of one request that cover a claim only together are not enough

A write tree [0,5] + write tree [5,10]
----
granted
tree: A write [0,5] t1; A write [5,10] t1

B write tree [3,8] below A
----
refused: an enclosing rlock holds [5,10] of 'tree', and [3,8] reaches past that: claim all of it there, or no more than that here
tree: A write [0,5] t1; A write [5,10] t1

C write tree [5,5] below A
----
granted
tree: A write [0,5] t1; A write [5,10] t1; C write [5,5] t1

C releases
----
done
tree: A write [0,5] t1; A write [5,10] t1

D write tree [3,5] + write tree [5,8] below A
----
granted
tree: A write [0,5] t1; A write [5,10] t1; D write [3,5] t1; D write [5,8] t1

== A whole claim below an interval reaches past the interval

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B read tree below A
----
refused: an enclosing rlock holds [0,10] of 'tree', and the whole of it reaches past that: claim all of it there, or no more than that here
tree: A write [0,10] t1

== A span beside the ancestor's is not nested: the claim queues and has a new token

A write tree [0,10]
----
granted
tree: A write [0,10] t1

B write tree (10,11] below A
----
granted
tree: A write [0,10] t1; B write (10,11] t2

C read tree (10,11] below A
----
waiting
tree: A write [0,10] t1; B write (10,11] t2; C read (10,11] waits 1st

B releases
----
done
tree: A write [0,10] t1; C read (10,11] t3

D write tree [-1,0) below A no-wait
----
granted
tree: A write [0,10] t1; C read (10,11] t3; D write [-1,0) t4

== A nested read survives the release of the ancestor's write, which amounts to a downgrade

A write tree
----
granted
tree: A write t1

B read tree below A
----
granted
tree: A write t1; B read t1

C read tree
----
waiting
tree: A write t1; B read t1; C read waits 1st

D write tree
----
waiting
tree: A write t1; B read t1; C read waits 1st; D write waits 2nd

A releases
----
done
tree: B read t1; C read t2; D write waits 1st

B releases
----
done
tree: C read t2; D write waits 1st

C releases
----
done
tree: D write t3

== An ancestor that has released has no effect

A write tree
----
granted
tree: A write t1

B read tree below A
----
granted
tree: A write t1; B read t1

A releases
----
done
tree: B read t1

C read tree below A
----
granted
tree: B read t1; C read t2

D write tree below A no-wait
----
busy
tree: B read t1; C read t2

E write tree below B
----
refused: an enclosing rlock holds 'tree' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: B read t1; C read t2
