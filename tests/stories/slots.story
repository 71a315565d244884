# A resource has N slots. A request takes one or several of them. Its N need not be that of the
# others: the smallest N counts among the request, the holders and the earlier waiters.

== N sessions hold a slot, and the next one waits

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2
----
granted
gpu: A slot of 2 t1; B slot of 2 t2

C slot gpu=2
----
waiting
gpu: A slot of 2 t1; B slot of 2 t2; C slot of 2 waits 1st

D slot gpu=2
----
waiting
gpu: A slot of 2 t1; B slot of 2 t2; C slot of 2 waits 1st; D slot of 2 waits 2nd

E slot gpu=2 no-wait
----
busy
gpu: A slot of 2 t1; B slot of 2 t2; C slot of 2 waits 1st; D slot of 2 waits 2nd

B releases
----
done
gpu: A slot of 2 t1; C slot of 2 t3; D slot of 2 waits 1st

A releases
----
done
gpu: C slot of 2 t3; D slot of 2 t4

== One release can grant several slots

A write gpu
----
granted
gpu: A write t1

B slot gpu=2
----
waiting
gpu: A write t1; B slot of 2 waits 1st

C slot gpu=2
----
waiting
gpu: A write t1; B slot of 2 waits 1st; C slot of 2 waits 2nd

D slot gpu=2
----
waiting
gpu: A write t1; B slot of 2 waits 1st; C slot of 2 waits 2nd; D slot of 2 waits 3rd

A releases
----
done
gpu: B slot of 2 t2; C slot of 2 t3; D slot of 2 waits 1st

== The smallest N counts among the request and the holders

A slot gpu=3
----
granted
gpu: A slot of 3 t1

B slot gpu=2
----
granted
gpu: A slot of 3 t1; B slot of 2 t2

C slot gpu=3
----
waiting
gpu: A slot of 3 t1; B slot of 2 t2; C slot of 3 waits 1st

D slot gpu=1 no-wait
----
busy
gpu: A slot of 3 t1; B slot of 2 t2; C slot of 3 waits 1st

B releases
----
done
gpu: A slot of 3 t1; C slot of 3 t3

E slot gpu=3
----
granted
gpu: A slot of 3 t1; C slot of 3 t3; E slot of 3 t4

== A larger N than that of the holders lets nobody in

A slot gpu=1
----
granted
gpu: A slot of 1 t1

B slot gpu=1000
----
waiting
gpu: A slot of 1 t1; B slot of 1000 waits 1st

A releases
----
done
gpu: B slot of 1000 t2

C slot gpu=1000
----
granted
gpu: B slot of 1000 t2; C slot of 1000 t3

== A waiter's N counts for those behind it only

A slot gpu=3
----
granted
gpu: A slot of 3 t1

B slot gpu=3
----
granted
gpu: A slot of 3 t1; B slot of 3 t2

C slot gpu=1
----
waiting
gpu: A slot of 3 t1; B slot of 3 t2; C slot of 1 waits 1st

D slot gpu=3
----
waiting
gpu: A slot of 3 t1; B slot of 3 t2; C slot of 1 waits 1st; D slot of 3 waits 2nd

C cancels
----
done
gpu: A slot of 3 t1; B slot of 3 t2; D slot of 3 t3

== A holder with a smaller N leaves, and several waiters are granted

A slot gpu=1
----
granted
gpu: A slot of 1 t1

B slot gpu=3
----
waiting
gpu: A slot of 1 t1; B slot of 3 waits 1st

C slot gpu=3
----
waiting
gpu: A slot of 1 t1; B slot of 3 waits 1st; C slot of 3 waits 2nd

D slot gpu=3
----
waiting
gpu: A slot of 1 t1; B slot of 3 waits 1st; C slot of 3 waits 2nd; D slot of 3 waits 3rd

E slot gpu=3
----
waiting
gpu: A slot of 1 t1; B slot of 3 waits 1st; C slot of 3 waits 2nd; D slot of 3 waits 3rd; E slot of 3 waits 4th

A releases
----
done
gpu: B slot of 3 t2; C slot of 3 t3; D slot of 3 t4; E slot of 3 waits 1st

== A request takes several slots at once

A slot gpu=4:3
----
granted
gpu: A 3 slots of 4 t1

B slot gpu=4:2
----
waiting
gpu: A 3 slots of 4 t1; B 2 slots of 4 waits 1st

C slot gpu=4
----
waiting
gpu: A 3 slots of 4 t1; B 2 slots of 4 waits 1st; C slot of 4 waits 2nd

A releases
----
done
gpu: B 2 slots of 4 t2; C slot of 4 t3

D slot gpu=4:4 no-wait
----
busy
gpu: B 2 slots of 4 t2; C slot of 4 t3

B releases
----
done
gpu: C slot of 4 t3

C releases
----
done
free

E slot gpu=4:4
----
granted
gpu: E 4 slots of 4 t4

== Small requests do not pass a big one

A slot gpu=4:3
----
granted
gpu: A 3 slots of 4 t1

B slot gpu=4:4
----
waiting
gpu: A 3 slots of 4 t1; B 4 slots of 4 waits 1st

C slot gpu=4
----
waiting
gpu: A 3 slots of 4 t1; B 4 slots of 4 waits 1st; C slot of 4 waits 2nd

D slot gpu=4 no-wait
----
busy
gpu: A 3 slots of 4 t1; B 4 slots of 4 waits 1st; C slot of 4 waits 2nd

A releases
----
done
gpu: B 4 slots of 4 t2; C slot of 4 waits 1st

B releases
----
done
gpu: C slot of 4 t3

== A nested request waits behind all slots for which a waiter asks

P write other
----
granted
other: P write t1

H read gpu
----
granted
gpu: H read t1
other: P write t1

X write b
----
granted
b: X write t1
gpu: H read t1
other: P write t1

B slot gpu=3:3 + write b
----
waiting
b: X write t1; B write waits 1st
gpu: H read t1; B 3 slots of 3 waits 1st
other: P write t1

N slot gpu=3 below P
----
waiting
b: X write t1; B write waits 1st
gpu: H read t1; B 3 slots of 3 waits 1st; N slot of 3 waits 2nd
other: P write t1

X releases
----
done
b: B write t2
gpu: H read t1; B 3 slots of 3 t2; N slot of 3 waits 1st
other: P write t1

B releases
----
done
gpu: H read t1; N slot of 3 t3
other: P write t1

== Below several slots, each nested request has slots of its own

A slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1

B slot gpu=4 below A
----
granted
gpu: A 2 slots of 4 t1; B slot of 4 t1

C slot gpu=4 below A
----
granted
gpu: A 2 slots of 4 t1; B slot of 4 t1; C slot of 4 t1

D slot gpu=4 below A
----
waiting
gpu: A 2 slots of 4 t1; B slot of 4 t1; C slot of 4 t1; D slot of 4 waits 1st

E slot gpu=4 below A no-wait
----
busy
gpu: A 2 slots of 4 t1; B slot of 4 t1; C slot of 4 t1; D slot of 4 waits 1st

F slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1; B slot of 4 t1; C slot of 4 t1; F 2 slots of 4 t2; D slot of 4 waits 1st

C releases
----
done
gpu: A 2 slots of 4 t1; B slot of 4 t1; D slot of 4 t1; F 2 slots of 4 t2

B releases
----
done
gpu: A 2 slots of 4 t1; D slot of 4 t1; F 2 slots of 4 t2

D releases
----
done
gpu: A 2 slots of 4 t1; F 2 slots of 4 t2

== A nested request for more than a hold has is refused, and one for all of it waits

A slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1

B slot gpu=4:3 below A
----
refused: an enclosing rlock holds 2 of the slots of 'gpu', and this asks for more: claim as many there, or no more than that here
gpu: A 2 slots of 4 t1

C slot gpu=4 below A
----
granted
gpu: A 2 slots of 4 t1; C slot of 4 t1

D slot gpu=4:2 below A
----
waiting
gpu: A 2 slots of 4 t1; C slot of 4 t1; D 2 slots of 4 waits 1st

E slot gpu=4 below A
----
waiting
gpu: A 2 slots of 4 t1; C slot of 4 t1; D 2 slots of 4 waits 1st; E slot of 4 waits 2nd

C releases
----
done
gpu: A 2 slots of 4 t1; D 2 slots of 4 t1; E slot of 4 waits 1st

D releases
----
done
gpu: A 2 slots of 4 t1; E slot of 4 t1

== Slots below a nested hold count against the nearest hold

A slot gpu=4:3
----
granted
gpu: A 3 slots of 4 t1

B slot gpu=4:2 below A
----
granted
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1

C slot gpu=4 below B
----
granted
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1

D slot gpu=4 below B
----
granted
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1; D slot of 4 t1

E slot gpu=4 below B
----
waiting
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1; D slot of 4 t1; E slot of 4 waits 1st

F slot gpu=4 below A
----
granted
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1; D slot of 4 t1; F slot of 4 t1; E slot of 4 waits 1st

G slot gpu=4 below A
----
waiting
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1; D slot of 4 t1; F slot of 4 t1; E slot of 4 waits 1st; G slot of 4 waits 2nd

H slot gpu=4 below F
----
granted
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1; D slot of 4 t1; F slot of 4 t1; H slot of 4 t1; E slot of 4 waits 1st; G slot of 4 waits 2nd

I slot gpu=4:2 below F
----
refused: an enclosing rlock holds 1 of the slots of 'gpu', and this asks for more: claim as many there, or no more than that here
gpu: A 3 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 t1; D slot of 4 t1; F slot of 4 t1; H slot of 4 t1; E slot of 4 waits 1st; G slot of 4 waits 2nd

B releases
----
done
gpu: A 3 slots of 4 t1; C slot of 4 t1; D slot of 4 t1; F slot of 4 t1; H slot of 4 t1; E slot of 4 waits 1st; G slot of 4 waits 2nd

C releases
----
done
gpu: A 3 slots of 4 t1; D slot of 4 t1; E slot of 4 t1; F slot of 4 t1; H slot of 4 t1; G slot of 4 waits 1st

F releases
----
done
gpu: A 3 slots of 4 t1; D slot of 4 t1; E slot of 4 t1; H slot of 4 t1; G slot of 4 waits 1st

H releases
----
done
gpu: A 3 slots of 4 t1; D slot of 4 t1; E slot of 4 t1; G slot of 4 t1

== What is left of several slots counts as slots when their hold has ended

A slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1

B slot gpu=4:2 below A
----
granted
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1

C slot gpu=4 below A
----
waiting
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 waits 1st

E slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; E 2 slots of 4 t2; C slot of 4 waits 1st

F slot gpu=4
----
waiting
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; E 2 slots of 4 t2; C slot of 4 waits 1st; F slot of 4 waits 2nd

A releases
----
done
gpu: B 2 slots of 4 t1; E 2 slots of 4 t2; C slot of 4 waits 1st; F slot of 4 waits 2nd

B releases
----
done
gpu: E 2 slots of 4 t2; C slot of 4 t3; F slot of 4 t4

== A waiter for a slot of a hold stops neither a request outside nor one that shares a slot

A slot gpu=4:2
----
granted
gpu: A 2 slots of 4 t1

B slot gpu=4:2 below A
----
granted
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1

C slot gpu=4 below A
----
waiting
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; C slot of 4 waits 1st

D slot gpu=4
----
granted
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; D slot of 4 t2; C slot of 4 waits 1st

E slot gpu=4
----
granted
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; D slot of 4 t2; E slot of 4 t3; C slot of 4 waits 1st

F slot gpu=4
----
waiting
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; D slot of 4 t2; E slot of 4 t3; C slot of 4 waits 1st; F slot of 4 waits 2nd

D releases
----
done
gpu: A 2 slots of 4 t1; B 2 slots of 4 t1; E slot of 4 t3; F slot of 4 t4; C slot of 4 waits 1st

== N is forgotten with the last slot, even if the resource is held in another mode

A read gpu
----
granted
gpu: A read t1

B slot gpu=1
----
granted
gpu: A read t1; B slot of 1 t2

B releases
----
done
gpu: A read t1

C slot gpu=4
----
granted
gpu: A read t1; C slot of 4 t3

== A queued writer stops later slots

A slot gpu=3
----
granted
gpu: A slot of 3 t1

B write gpu
----
waiting
gpu: A slot of 3 t1; B write waits 1st

C slot gpu=3
----
waiting
gpu: A slot of 3 t1; B write waits 1st; C slot of 3 waits 2nd

D slot gpu=3 no-wait
----
busy
gpu: A slot of 3 t1; B write waits 1st; C slot of 3 waits 2nd

A releases
----
done
gpu: B write t2; C slot of 3 waits 1st

B releases
----
done
gpu: C slot of 3 t3

== A queued slot does not stop readers

A slot gpu=1
----
granted
gpu: A slot of 1 t1

B slot gpu=1
----
waiting
gpu: A slot of 1 t1; B slot of 1 waits 1st

C read gpu
----
granted
gpu: A slot of 1 t1; C read t2; B slot of 1 waits 1st

A releases
----
done
gpu: C read t2; B slot of 1 t3

== A slot below a slot is granted at once, past the queue, and shares the ancestor's slot

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2 below A
----
granted
gpu: A slot of 2 t1; B slot of 2 t1

C slot gpu=2
----
granted
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t2

D slot gpu=2
----
waiting
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t2; D slot of 2 waits 1st

E slot gpu=2 below C
----
granted
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t2; E slot of 2 t2; D slot of 2 waits 1st

A releases
----
done
gpu: B slot of 2 t1; C slot of 2 t2; E slot of 2 t2; D slot of 2 waits 1st

B releases
----
done
gpu: C slot of 2 t2; E slot of 2 t2; D slot of 2 t3

== Below a slot, a write is refused and a slot with another N shares that slot

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B write gpu below A
----
refused: an enclosing rlock holds 'gpu' for slot, which can't become write without risk of deadlock: claim --prewrite or --write there instead
gpu: A slot of 2 t1

C slot gpu=3 below A
----
granted
gpu: A slot of 2 t1; C slot of 3 t1

== Below a read or a prewrite, a slot waits for a free slot but passes the queue

A prewrite gpu
----
granted
gpu: A prewrite t1

B slot gpu=1
----
granted
gpu: A prewrite t1; B slot of 1 t2

C write gpu
----
waiting
gpu: A prewrite t1; B slot of 1 t2; C write waits 1st

D slot gpu=1 below A
----
waiting
gpu: A prewrite t1; B slot of 1 t2; C write waits 1st; D slot of 1 waits 2nd

B releases
----
done
gpu: A prewrite t1; D slot of 1 t3; C write waits 1st

== Below a write, a slot is granted at once

A write gpu
----
granted
gpu: A write t1

B slot gpu=1
----
waiting
gpu: A write t1; B slot of 1 waits 1st

C slot gpu=1 below A
----
granted
gpu: A write t1; C slot of 1 t1; B slot of 1 waits 1st

A releases
----
done
gpu: C slot of 1 t1; B slot of 1 waits 1st

C releases
----
done
gpu: B slot of 1 t2

== A slot below a write below a slot shares that slot

A write gpu
----
granted
gpu: A write t1

B slot gpu=1 below A
----
granted
gpu: A write t1; B slot of 1 t1

C write gpu below B
----
granted
gpu: A write t1; B slot of 1 t1; C write t1

D slot gpu=1 below C
----
granted
gpu: A write t1; B slot of 1 t1; C write t1; D slot of 1 t1

E slot gpu=1 below C
----
granted
gpu: A write t1; B slot of 1 t1; C write t1; D slot of 1 t1; E slot of 1 t1

== Each share of a released slot becomes a slot of its own

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=2 below A
----
granted
gpu: A slot of 2 t1; B slot of 2 t1

C slot gpu=2 below A
----
granted
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t1

D slot gpu=2 no-wait
----
granted
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t1; D slot of 2 t2

D releases
----
done
gpu: A slot of 2 t1; B slot of 2 t1; C slot of 2 t1

A releases
----
done
gpu: B slot of 2 t1; C slot of 2 t1

E slot gpu=2
----
waiting
gpu: B slot of 2 t1; C slot of 2 t1; E slot of 2 waits 1st

B releases
----
done
gpu: C slot of 2 t1; E slot of 2 t3

C releases
----
done
gpu: E slot of 2 t3

