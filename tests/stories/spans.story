# The ends of intervals are exact rationals, compared without rounding. The whole resource is the
# span (-inf,inf).

== Intervals that touch overlap when both ends are closed

A write tree [0,1]
----
granted
tree: A write [0,1] t1

B write tree [1,2] no-wait
----
busy
tree: A write [0,1] t1

C write tree [-1,0] no-wait
----
busy
tree: A write [0,1] t1

D write tree (1,2] no-wait
----
granted
tree: A write [0,1] t1; D write (1,2] t2

E write tree [-1,0) no-wait
----
granted
tree: A write [0,1] t1; D write (1,2] t2; E write [-1,0) t3

== Intervals that touch do not overlap when one of the ends is open

A write tree (0,1)
----
granted
tree: A write (0,1) t1

B write tree (1,2) no-wait
----
granted
tree: A write (0,1) t1; B write (1,2) t2

C write tree [1,1] no-wait
----
granted
tree: A write (0,1) t1; B write (1,2) t2; C write [1,1] t3

D write tree [-1,0] no-wait
----
granted
tree: A write (0,1) t1; B write (1,2) t2; C write [1,1] t3; D write [-1,0] t4

E read tree [1,1] no-wait
----
busy
tree: A write (0,1) t1; B write (1,2) t2; C write [1,1] t3; D write [-1,0] t4

F read tree [0.999,1) no-wait
----
busy
tree: A write (0,1) t1; B write (1,2) t2; C write [1,1] t3; D write [-1,0] t4

== 3/10, 0.3 and 3e-1 are equal

A write tree [0,3/10]
----
granted
tree: A write [0,3/10] t1

B write tree [0.3,1] no-wait
----
busy
tree: A write [0,3/10] t1

C write tree [3e-1,1] no-wait
----
busy
tree: A write [0,3/10] t1

D write tree (0.30,1] no-wait
----
granted
tree: A write [0,3/10] t1; D write (0.30,1] t2

== 0.30000000000000004, the floating-point sum of 0.1 and 0.2, is above 0.3

A write tree [0,0.3]
----
granted
tree: A write [0,0.3] t1

B write tree [0.30000000000000004,1] no-wait
----
granted
tree: A write [0,0.3] t1; B write [0.30000000000000004,1] t2

== 1/3 is above 0.333, with any number of digits

A write tree [0,0.33333333333333333333333333333333]
----
granted
tree: A write [0,0.33333333333333333333333333333333] t1

B write tree [1/3,1] no-wait
----
granted
tree: A write [0,0.33333333333333333333333333333333] t1; B write [1/3,1] t2

C read tree [0.33333333333333333333333333333334,2] no-wait
----
busy
tree: A write [0,0.33333333333333333333333333333333] t1; B write [1/3,1] t2

D write tree (0.33333333333333333333333333333333,1/3) no-wait
----
granted
tree: A write [0,0.33333333333333333333333333333333] t1; B write [1/3,1] t2; D write (0.33333333333333333333333333333333,1/3) t3

== 0.333 is below 1/3

A write tree [0,1/3]
----
granted
tree: A write [0,1/3] t1

B write tree [0.333,1] no-wait
----
busy
tree: A write [0,1/3] t1

C write tree [0.334,1] no-wait
----
granted
tree: A write [0,1/3] t1; C write [0.334,1] t2

== Nested intervals stay distinct at any depth, far below the precision of floating point

A write tree [1,1.000000000000000000000000000000000000000000000000000001)
----
granted
tree: A write [1,1.000000000000000000000000000000000000000000000000000001) t1

B write tree [1.000000000000000000000000000000000000000000000000000001,2) no-wait
----
granted
tree: A write [1,1.000000000000000000000000000000000000000000000000000001) t1; B write [1.000000000000000000000000000000000000000000000000000001,2) t2

C read tree [1.0000000000000000000000000000000000000000000000000000005,1.0000000000000000000000000000000000000000000000000000006] no-wait
----
busy
tree: A write [1,1.000000000000000000000000000000000000000000000000000001) t1; B write [1.000000000000000000000000000000000000000000000000000001,2) t2

D write tree [-1e-300,1e-300] no-wait
----
granted
tree: A write [1,1.000000000000000000000000000000000000000000000000000001) t1; B write [1.000000000000000000000000000000000000000000000000000001,2) t2; D write [-1e-300,1e-300] t3

== Ends may be negative or infinite

A write tree [-inf,-3e-9]
----
granted
tree: A write [-inf,-3e-9] t1

B write tree (-3e-9,22/7] no-wait
----
granted
tree: A write [-inf,-3e-9] t1; B write (-3e-9,22/7] t2

C write tree [3.2,inf] no-wait
----
granted
tree: A write [-inf,-3e-9] t1; B write (-3e-9,22/7] t2; C write [3.2,inf] t3

D read tree [-1e100,-1e99] no-wait
----
busy
tree: A write [-inf,-3e-9] t1; B write (-3e-9,22/7] t2; C write [3.2,inf] t3

E read tree [1e100,inf) no-wait
----
busy
tree: A write [-inf,-3e-9] t1; B write (-3e-9,22/7] t2; C write [3.2,inf] t3

F read tree [3.15,3.19] no-wait
----
granted
tree: A write [-inf,-3e-9] t1; B write (-3e-9,22/7] t2; C write [3.2,inf] t3; F read [3.15,3.19] t4

== The whole resource overlaps every interval

A write tree [0,1]
----
granted
tree: A write [0,1] t1

B write tree no-wait
----
busy
tree: A write [0,1] t1

C write tree (-inf,inf) no-wait
----
busy
tree: A write [0,1] t1

A releases
----
done
free

D write tree (-inf,inf)
----
granted
tree: D write (-inf,inf) t2

E read tree no-wait
----
busy
tree: D write (-inf,inf) t2

F read tree [1e100,1e101] no-wait
----
busy
tree: D write (-inf,inf) t2

== Whole claims and intervals queue behind each other

A read tree [0,1]
----
granted
tree: A read [0,1] t1

B write tree
----
waiting
tree: A read [0,1] t1; B write waits 1st

C read tree [5,6]
----
waiting
tree: A read [0,1] t1; B write waits 1st; C read [5,6] waits 2nd

D read tree
----
waiting
tree: A read [0,1] t1; B write waits 1st; C read [5,6] waits 2nd; D read waits 3rd

A releases
----
done
tree: B write t2; C read [5,6] waits 1st; D read waits 2nd

B releases
----
done
tree: C read [5,6] t3; D read t4
