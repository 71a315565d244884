# A resource has at most N holders of slots. N is stored while a session holds or waits for a slot.
# A request with another N is refused, and the refusal names the N in force.

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

== Another N is refused while a session holds a slot

A slot gpu=2
----
granted
gpu: A slot of 2 t1

B slot gpu=3
----
refused: 'gpu' is shared in 2 slots as long as anybody holds or waits for one, not in 3: ask for gpu=2
gpu: A slot of 2 t1

C slot gpu=1 no-wait
----
refused: 'gpu' is shared in 2 slots as long as anybody holds or waits for one, not in 1: ask for gpu=2
gpu: A slot of 2 t1

A releases
----
done
free

D slot gpu=3
----
granted
gpu: D slot of 3 t2

== Another N is refused while a session waits for a slot

A write gpu
----
granted
gpu: A write t1

B slot gpu=2
----
waiting
gpu: A write t1; B slot of 2 waits 1st

C slot gpu=3
----
refused: 'gpu' is shared in 2 slots as long as anybody holds or waits for one, not in 3: ask for gpu=2
gpu: A write t1; B slot of 2 waits 1st

B cancels
----
done
gpu: A write t1

D slot gpu=3
----
waiting
gpu: A write t1; D slot of 3 waits 1st

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

== Below a slot, a write and a slot with another N are refused

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
refused: 'gpu' is shared in 2 slots as long as anybody holds or waits for one, not in 3: ask for gpu=2
gpu: A slot of 2 t1

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

