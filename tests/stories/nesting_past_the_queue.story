# These scenes show the table of docs/design.md#nesting with a queued session. A nested claim is
# granted past the queue, because the waiter may wait for the ancestor, which ends no sooner than
# its child.

== Below a read, a nested claim passes a queued writer

A read tree
----
granted
tree: A read t1

Q write tree
----
waiting
tree: A read t1; Q write waits 1st

B read tree below A
----
granted
tree: A read t1; B read t1; Q write waits 1st

C prewrite tree below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become prewrite without risk of deadlock: claim --prewrite there instead
tree: A read t1; B read t1; Q write waits 1st

D write tree below A
----
refused: an enclosing rlock holds 'tree' for read, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: A read t1; B read t1; Q write waits 1st

E read tree below A no-wait
----
granted
tree: A read t1; B read t1; E read t1; Q write waits 1st

F read tree no-wait
----
busy
tree: A read t1; B read t1; E read t1; Q write waits 1st

A releases
----
done
tree: B read t1; E read t1; Q write waits 1st

B releases
----
done
tree: E read t1; Q write waits 1st

E releases
----
done
tree: Q write t2

== Below a prewrite, nested claims pass queued writers

A prewrite tree
----
granted
tree: A prewrite t1

P prewrite tree
----
waiting
tree: A prewrite t1; P prewrite waits 1st

Q write tree
----
waiting
tree: A prewrite t1; P prewrite waits 1st; Q write waits 2nd

B read tree below A
----
granted
tree: A prewrite t1; B read t1; P prewrite waits 1st; Q write waits 2nd

B releases
----
done
tree: A prewrite t1; P prewrite waits 1st; Q write waits 2nd

C prewrite tree below A
----
granted
tree: A prewrite t1; C prewrite t1; P prewrite waits 1st; Q write waits 2nd

C releases
----
done
tree: A prewrite t1; P prewrite waits 1st; Q write waits 2nd

D write tree below A
----
granted
tree: A prewrite t1; D write t2; P prewrite waits 1st; Q write waits 2nd

D releases
----
done
tree: A prewrite t1; P prewrite waits 1st; Q write waits 2nd

A releases
----
done
tree: P prewrite t3; Q write waits 1st

== Below a write, nested claims pass every waiter

A write tree
----
granted
tree: A write t1

P read tree
----
waiting
tree: A write t1; P read waits 1st

Q write tree
----
waiting
tree: A write t1; P read waits 1st; Q write waits 2nd

B read tree below A
----
granted
tree: A write t1; B read t1; P read waits 1st; Q write waits 2nd

B releases
----
done
tree: A write t1; P read waits 1st; Q write waits 2nd

C prewrite tree below A
----
granted
tree: A write t1; C prewrite t1; P read waits 1st; Q write waits 2nd

C releases
----
done
tree: A write t1; P read waits 1st; Q write waits 2nd

D write tree below A
----
granted
tree: A write t1; D write t1; P read waits 1st; Q write waits 2nd

A releases
----
done
tree: D write t1; P read waits 1st; Q write waits 2nd

D releases
----
done
tree: P read t2; Q write waits 1st

== Beside the ancestor's span, a waiter for the whole is overtaken

A read tree [0,1]
----
granted
tree: A read [0,1] t1

R read tree [5,6]
----
granted
tree: A read [0,1] t1; R read [5,6] t2

Q write tree
----
waiting
tree: A read [0,1] t1; R read [5,6] t2; Q write waits 1st

B read tree [0,1] below A no-wait
----
granted
tree: A read [0,1] t1; B read [0,1] t1; R read [5,6] t2; Q write waits 1st

C read tree [5,6] below A no-wait
----
granted
tree: A read [0,1] t1; B read [0,1] t1; R read [5,6] t2; C read [5,6] t3; Q write waits 1st
