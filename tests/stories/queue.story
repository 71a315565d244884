# The one rule: a request is granted when it conflicts with no holder and with no earlier waiter.

== Requests that conflict are granted first come, first served

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

A releases
----
done
tree: B write t2; C write waits 1st

B releases
----
done
tree: C write t3

C releases
----
done
free

== A queued writer stops later readers, so readers cannot starve the writer

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

A releases
----
done
tree: B write t2; C read waits 1st

B releases
----
done
tree: C read t3

== A queued reader is not overtaken by later writers, so writers cannot starve the reader

A write tree
----
granted
tree: A write t1

B read tree
----
waiting
tree: A write t1; B read waits 1st

C write tree
----
waiting
tree: A write t1; B read waits 1st; C write waits 2nd

D write tree no-wait
----
busy
tree: A write t1; B read waits 1st; C write waits 2nd

A releases
----
done
tree: B read t2; C write waits 1st

B releases
----
done
tree: C write t3

== Readers are granted in batches, each batch up to the next writer

A write tree
----
granted
tree: A write t1

B read tree
----
waiting
tree: A write t1; B read waits 1st

C read tree
----
waiting
tree: A write t1; B read waits 1st; C read waits 2nd

D write tree
----
waiting
tree: A write t1; B read waits 1st; C read waits 2nd; D write waits 3rd

E read tree
----
waiting
tree: A write t1; B read waits 1st; C read waits 2nd; D write waits 3rd; E read waits 4th

A releases
----
done
tree: B read t2; C read t3; D write waits 1st; E read waits 2nd

B releases
----
done
tree: C read t3; D write waits 1st; E read waits 2nd

C releases
----
done
tree: D write t4; E read waits 1st

D releases
----
done
tree: E read t5

== A queued prewrite does not stop later readers

A prewrite tree
----
granted
tree: A prewrite t1

B prewrite tree
----
waiting
tree: A prewrite t1; B prewrite waits 1st

C read tree
----
granted
tree: A prewrite t1; C read t2; B prewrite waits 1st

D prewrite tree
----
waiting
tree: A prewrite t1; C read t2; B prewrite waits 1st; D prewrite waits 2nd

A releases
----
done
tree: C read t2; B prewrite t3; D prewrite waits 1st

== A request without a wait does not overtake a waiter that it conflicts with

A read tree
----
granted
tree: A read t1

B write tree
----
waiting
tree: A read t1; B write waits 1st

C read tree no-wait
----
busy
tree: A read t1; B write waits 1st

B cancels
----
done
tree: A read t1

D read tree no-wait
----
granted
tree: A read t1; D read t2

== A request without a wait passes waiters that it does not conflict with

A prewrite tree
----
granted
tree: A prewrite t1

B prewrite tree
----
waiting
tree: A prewrite t1; B prewrite waits 1st

C read tree no-wait
----
granted
tree: A prewrite t1; C read t2; B prewrite waits 1st

== A queued write on [0,1] does not stop a write on [5,6]

A read tree [0,1]
----
granted
tree: A read [0,1] t1

B write tree [0,1]
----
waiting
tree: A read [0,1] t1; B write [0,1] waits 1st

C write tree [5,6]
----
granted
tree: A read [0,1] t1; C write [5,6] t2; B write [0,1] waits 1st

== A queued claim stops later claims that overlap it, also on a span without holders

A read tree [0,2]
----
granted
tree: A read [0,2] t1

B write tree [1,5]
----
waiting
tree: A read [0,2] t1; B write [1,5] waits 1st

C read tree [4,6]
----
waiting
tree: A read [0,2] t1; B write [1,5] waits 1st; C read [4,6] waits 2nd

D write tree [6,7]
----
waiting
tree: A read [0,2] t1; B write [1,5] waits 1st; C read [4,6] waits 2nd; D write [6,7] waits 3rd

E read tree [8,9]
----
granted
tree: A read [0,2] t1; E read [8,9] t2; B write [1,5] waits 1st; C read [4,6] waits 2nd; D write [6,7] waits 3rd

A releases
----
done
tree: E read [8,9] t2; B write [1,5] t3; C read [4,6] waits 1st; D write [6,7] waits 2nd

B releases
----
done
tree: E read [8,9] t2; C read [4,6] t4; D write [6,7] waits 1st

C releases
----
done
tree: E read [8,9] t2; D write [6,7] t5

== A release grants every waiter that it unblocks, anywhere in the queue

A write tree [0,1]
----
granted
tree: A write [0,1] t1

B write tree [5,6]
----
granted
tree: A write [0,1] t1; B write [5,6] t2

C write tree [0,1]
----
waiting
tree: A write [0,1] t1; B write [5,6] t2; C write [0,1] waits 1st

D write tree [5,6]
----
waiting
tree: A write [0,1] t1; B write [5,6] t2; C write [0,1] waits 1st; D write [5,6] waits 2nd

B releases
----
done
tree: A write [0,1] t1; D write [5,6] t3; C write [0,1] waits 1st

== A waiter that cancels unblocks the waiters behind it

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

D write tree
----
waiting
tree: A read t1; B write waits 1st; C read waits 2nd; D write waits 3rd

E read tree
----
waiting
tree: A read t1; B write waits 1st; C read waits 2nd; D write waits 3rd; E read waits 4th

B cancels
----
done
tree: A read t1; C read t2; D write waits 1st; E read waits 2nd

D cancels
----
done
tree: A read t1; C read t2; E read t3
