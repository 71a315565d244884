# What a resource remembers of ended requests. Skips of one job in a row are one entry. So are the
# requests of one job that ended without a grant since the last run.

== Each end is an entry
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree
----
granted
tree: B write t2

B exits 3
----
done
free

C write tree
----
granted
tree: C write t3

C is killed
----
done
free

D write tree
----
granted
tree: D write t4

break tree
----
broke D
free

history of tree
----
A exit 0; B exit 3; C expired; D broken
free

== A waiter that leaves has an entry, and a grant without a command has none
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B write tree
----
waiting
tree: A write t1; B write waits 1st

B cancels
----
done
tree: A write t1

A releases
----
done
free

history of tree
----
B left 1
free

== The ring keeps as many entries as the last request asks
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

A exits 1
----
done
free

B write tree
----
granted
tree: B write t2

B exits 2
----
done
free

C write tree
----
granted
tree: C write t3

C exits 3
----
done
free

D write tree history 2
----
granted
tree: D write t4

D exits 4
----
done
free

history of tree
----
C exit 3; D exit 4
free

E write tree history 0
----
granted
tree: E write t5

E exits 5
----
done
free

history of tree
----
nothing
free

== Each resource of a request has an entry
store only: the command line has no options for this yet

A write a + write b
----
granted
a: A write t1
b: A write t1

A exits 0
----
done
free

history of a
----
A exit 0
free

history of b
----
A exit 0
free

== Skips in a row share an entry
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: A write t1

C read tree no-wait skip-ok as k
----
busy, skipped 1 in a row
tree: A write t1

D write tree no-wait skip-ok as j
----
busy, skipped 2 in a row
tree: A write t1

A exits 0
----
done
free

history of tree
----
D skipped 2; C skipped 1; A exit 0
free

E write tree as j
----
granted
tree: E write t2

F write tree no-wait skip-ok as j
----
busy, skipped 1 in a row
tree: E write t2

E exits 0
----
done
free

history of tree
----
D skipped 2; C skipped 1; A exit 0; F skipped 1; E exit 0
free

== A resource forgets when it is told to, unless it is used
store only: no command makes a name forget

A write tree
----
granted
tree: A write t1

A exits 3
----
done
free

B read tree
----
granted
tree: B read t2

forget tree
----
done
tree: B read t2

history of tree
----
A exit 3
tree: B read t2

B exits 4
----
done
free

forget tree
----
done
free

history of tree
----
nothing
free

C write tree
----
granted
tree: C write t3

C exits 5
----
done
free

history of tree
----
C exit 5
free

== Waits of one job since the last run share an entry
store only: the command line has no options for this yet

A write tree
----
granted
tree: A write t1

B write tree no-wait as j
----
busy
tree: A write t1

D write tree as j
----
waiting
tree: A write t1; D write waits 1st

1s pass
----
done
tree: A write t1; D write waits 1st

D gives up
----
busy
tree: A write t1

E write tree as k
----
waiting
tree: A write t1; E write waits 1st

E cancels
----
done
tree: A write t1

A exits 0
----
done
free

F write tree
----
granted
tree: F write t2

G write tree no-wait as j
----
busy
tree: F write t2

history of tree
----
D busy 2; E left 1; A exit 0; G busy 1
tree: F write t2

F exits 0
----
done
free

== Waits take at most a quarter of the ring, and the oldest makes way
store only: the command line has no options for this yet

A write tree history 8
----
granted
tree: A write t1

A exits 0
----
done
free

B write tree
----
granted
tree: B write t2

C write tree no-wait as c history 8
----
busy
tree: B write t2

D write tree no-wait as d history 8
----
busy
tree: B write t2

E write tree no-wait as e history 8
----
busy
tree: B write t2

F write tree no-wait as f history 3
----
busy
tree: B write t2

history of tree
----
A exit 0; E busy 1; D busy 1
tree: B write t2

B exits 1
----
done
free

