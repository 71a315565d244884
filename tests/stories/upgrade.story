# A session below a prewrite hold may request a write over that span or a part of it. The upgrade
# waits only for the readers and slots that overlap it. It ranks ahead of every ordinary waiter and
# stops new overlapping readers while it waits.

== When the write of an upgrade is released, the prewrite is still held

A prewrite tree
----
granted
tree: A prewrite t1

B write tree below A
----
granted
tree: A prewrite t1; B write t2

C read tree
----
waiting
tree: A prewrite t1; B write t2; C read waits 1st

D prewrite tree
----
waiting
tree: A prewrite t1; B write t2; C read waits 1st; D prewrite waits 2nd

B releases
----
done
tree: A prewrite t1; C read t3; D prewrite waits 1st

A releases
----
done
tree: C read t3; D prewrite t4

== An upgrade waits for every reader that overlaps it

A prewrite tree
----
granted
tree: A prewrite t1

R read tree
----
granted
tree: A prewrite t1; R read t2

S read tree
----
granted
tree: A prewrite t1; R read t2; S read t3

B write tree below A
----
waiting
tree: A prewrite t1; R read t2; S read t3; B write waits 1st

R releases
----
done
tree: A prewrite t1; S read t3; B write waits 1st

S releases
----
done
tree: A prewrite t1; B write t4

== An upgrade does not wait for readers that do not overlap it

A prewrite tree
----
granted
tree: A prewrite t1

R read tree [0,1]
----
granted
tree: A prewrite t1; R read [0,1] t2

S read tree [5,6]
----
granted
tree: A prewrite t1; R read [0,1] t2; S read [5,6] t3

B write tree [0,2] below A
----
waiting
tree: A prewrite t1; R read [0,1] t2; S read [5,6] t3; B write [0,2] waits 1st

R releases
----
done
tree: A prewrite t1; S read [5,6] t3; B write [0,2] t4

C write tree [3,4] below A no-wait
----
granted
tree: A prewrite t1; S read [5,6] t3; B write [0,2] t4; C write [3,4] t5

== A waiting upgrade stops new overlapping readers and no others

A prewrite tree
----
granted
tree: A prewrite t1

R read tree [0,1]
----
granted
tree: A prewrite t1; R read [0,1] t2

B write tree [0,2] below A
----
waiting
tree: A prewrite t1; R read [0,1] t2; B write [0,2] waits 1st

S read tree [2,3] no-wait
----
busy
tree: A prewrite t1; R read [0,1] t2; B write [0,2] waits 1st

T read tree [1,2]
----
waiting
tree: A prewrite t1; R read [0,1] t2; B write [0,2] waits 1st; T read [1,2] waits 2nd

U read tree [5,6]
----
granted
tree: A prewrite t1; R read [0,1] t2; U read [5,6] t3; B write [0,2] waits 1st; T read [1,2] waits 2nd

B cancels
----
done
tree: A prewrite t1; R read [0,1] t2; U read [5,6] t3; T read [1,2] t4

== An upgrade ranks ahead of every ordinary waiter

A prewrite tree
----
granted
tree: A prewrite t1

R read tree
----
granted
tree: A prewrite t1; R read t2

P write tree
----
waiting
tree: A prewrite t1; R read t2; P write waits 1st

Q read tree
----
waiting
tree: A prewrite t1; R read t2; P write waits 1st; Q read waits 2nd

B write tree below A
----
waiting
tree: A prewrite t1; R read t2; P write waits 1st; Q read waits 2nd; B write waits 3rd

R releases
----
done
tree: A prewrite t1; B write t3; P write waits 1st; Q read waits 2nd

B releases
----
done
tree: A prewrite t1; P write waits 1st; Q read waits 2nd

A releases
----
done
tree: P write t4; Q read waits 1st

== An upgrade waits for slots as for readers

A prewrite tree
----
granted
tree: A prewrite t1

R slot tree=2
----
granted
tree: A prewrite t1; R slot of 2 t2

B write tree below A
----
waiting
tree: A prewrite t1; R slot of 2 t2; B write waits 1st

S slot tree=2 no-wait
----
busy
tree: A prewrite t1; R slot of 2 t2; B write waits 1st

R releases
----
done
tree: A prewrite t1; B write t3

== An upgrade without a wait is busy while a reader holds

A prewrite tree
----
granted
tree: A prewrite t1

R read tree
----
granted
tree: A prewrite t1; R read t2

B write tree below A no-wait
----
busy
tree: A prewrite t1; R read t2

R releases
----
done
tree: A prewrite t1

C write tree below A no-wait
----
granted
tree: A prewrite t1; C write t3

== A slot below a prewrite prevents the upgrade below the slot

A prewrite tree
----
granted
tree: A prewrite t1

B slot tree=2 below A
----
granted
tree: A prewrite t1; B slot of 2 t2

C write tree below B
----
refused: an enclosing rlock holds 'tree' for slot, which can't become write without risk of deadlock: claim --prewrite or --write there instead
tree: A prewrite t1; B slot of 2 t2

D prewrite tree below B
----
granted
tree: A prewrite t1; D prewrite t1; B slot of 2 t2

E write tree below A
----
waiting
tree: A prewrite t1; D prewrite t1; B slot of 2 t2; E write waits 1st

B releases
----
done
tree: A prewrite t1; D prewrite t1; E write waits 1st

== A slot below a write prevents nothing

A write tree
----
granted
tree: A write t1

B slot tree=2 below A
----
granted
tree: A write t1; B slot of 2 t1

C write tree below B
----
granted
tree: A write t1; B slot of 2 t1; C write t1

== Several upgrades of one prewrite are granted one after another

A prewrite tree
----
granted
tree: A prewrite t1

B write tree below A
----
granted
tree: A prewrite t1; B write t2

C write tree below A
----
waiting
tree: A prewrite t1; B write t2; C write waits 1st

D write tree
----
waiting
tree: A prewrite t1; B write t2; C write waits 1st; D write waits 2nd

E write tree below A
----
waiting
tree: A prewrite t1; B write t2; C write waits 1st; D write waits 2nd; E write waits 3rd

B releases
----
done
tree: A prewrite t1; C write t3; D write waits 1st; E write waits 2nd

C releases
----
done
tree: A prewrite t1; E write t4; D write waits 1st

== The write survives the release of the prewrite

A prewrite tree
----
granted
tree: A prewrite t1

B write tree below A
----
granted
tree: A prewrite t1; B write t2

P prewrite tree
----
waiting
tree: A prewrite t1; B write t2; P prewrite waits 1st

A releases
----
done
tree: B write t2; P prewrite waits 1st

B releases
----
done
tree: P prewrite t3

== A waiting upgrade waits like any other request when the prewrite is released

A prewrite tree
----
granted
tree: A prewrite t1

R read tree
----
granted
tree: A prewrite t1; R read t2

P prewrite tree
----
waiting
tree: A prewrite t1; R read t2; P prewrite waits 1st

B write tree below A
----
waiting
tree: A prewrite t1; R read t2; P prewrite waits 1st; B write waits 2nd

A releases
----
done
tree: R read t2; P prewrite t3; B write waits 1st

R releases
----
done
tree: P prewrite t3; B write waits 1st

P releases
----
done
tree: B write t4

B releases
----
done
free
