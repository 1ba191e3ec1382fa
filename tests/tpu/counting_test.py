"""counting_test.py DIRECTORY_OF_TPU_COMPILE: bundle counting on dumps written by hand; needs no TPU compiler."""

import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
import tpu_compile  # noqa: E402


def listing(bundles):
    """Bundle text from (depth, body) pairs."""
    return "".join(f" {hex(i) if i else '0'}   : {'>' * depth} {{ {body} }}\n" for i, (depth, body) in enumerate(bundles))


def without(bundles, *dropped):
    return listing([b for i, b in enumerate(bundles) if i not in dropped])


# A grid of 8 steps; an inner loop of 5 passes, 2 bundles and 2 stalls long; code for the first step alone;
# code behind a condition on data. One branch delay slot.
KERNEL = [
    (0, "%s1_s0 = smov.u32 0"),                                                           # 0
    (1, "%s2_s1 = sphi %s1_s0, %s9_s1 /* iteration index, stage = 0 */"),                 # 1  grid loop
    (1, "%s3_s2 = sadd.s32 4294967295, %s2_s1 /* iteration index, stage = 1 */"),         # 2
    (1, "%p4_p0 = scmp.ne.s32.totalorder %s3_s2, 0  ;;  %s5_s3 = smov.u32 0"),            # 3
    (1, "%6 = sbr.rel (%p4_p0) target bundleno = 8 (0x8), region = 5"),                   # 4  first step only
    (0, ""),                                                                              # 5  delay slot
    (1, "%7 = vst [vmem:[%s2] sm:$0xff] %v1"),                                            # 6
    (1, "%8 = vst [vmem:[%s2] sm:$0xff] %v2"),                                            # 7
    (2, "%s10_s4 = sphi %s5_s3, %s11_s4  ;;  %v3 = vld [vmem:[%s2]]"),                    # 8  inner loop
    (0, ""),                                                                              # 9  stall
    (2, "%s11_s4 = sadd.s32 1, %s10_s4"),                                                 # 10
    (2, "%p12_p1 = scmp.ge.s32.totalorder %s11_s4, 5 /* loop exit test */"),              # 11
    (2, "%13 = sbr.rel (!%p12_p1) target bundleno = 8 (0x8), region = 7"),                # 12
    (0, ""),                                                                              # 13 delay slot, dropped
    (1, "%s14_s5 = sld [smem:[%s0]]"),                                                    # 14
    (1, "%p15_p2 = scmp.ne.s32.totalorder %s14_s5, 3"),                                   # 15
    (1, "%16 = sbr.rel (%p15_p2) target bundleno = 19 (0x13), region = 9"),               # 16 a condition on data
    (0, ""),                                                                              # 17 delay slot
    (1, "%17 = vst [vmem:[%s2] sm:$0xff] %v3"),                                           # 18
    (1, "%s9_s1 = sadd.s32 1, %s2_s1"),                                                   # 19
    (1, "%p18_p3 = scmp.ge.s32.totalorder %s9_s1, 10 /* loop exit test */"),              # 20
    (1, "%19 = sbr.rel (!%p18_p3) target bundleno = 1 (0x1), region = 3"),                # 21
    (0, ""),                                                                              # 22 delay slot
    (0, "%20 = vsyncpa [#allocation4], 1"),                                               # 23
]
GRID = (b'"stable_mosaic.func.func"() {iteration_bounds = array<i64: 8>}', [8])


def counted(bundles, dropped, grid, trips=(), delay_slots=1):
    code = tpu_compile.Code(listing(bundles), without(bundles, *dropped), delay_slots, grid)
    rows = [[1] if body else [0] for _, body in bundles]
    return tpu_compile.count(code, rows, *code.loops(list(trips)))


class Counting(unittest.TestCase):
    def test_step(self):
        report = counted(KERNEL, {9, 13}, [8])
        # 15 bundles of the grid loop outside the inner one (closing delay slot not counted), 2 of them once only,
        # and 5 times the inner loop's 4
        self.assertEqual(report["step"], "grid")
        self.assertEqual(report["bundles_per_step"], 13 + 5 * 4)
        self.assertEqual(report["cycles_per_step"], 13 + 5 * 6)
        self.assertEqual((report["once_bundles"], report["once_cycles"]), (2, 2))
        self.assertEqual([(l["bundles"], l["cycles"], l["trips"]) for l in report["loops"]], [(4, 6, 5)])
        self.assertEqual([b["counted"] for b in report["branches"]], [False, True])
        # every full bundle but the closing one of the step occupies one slot in the rows above
        self.assertEqual(report["slots"], [11 + 5 * 4])

    def test_first_step_of_a_dimension_of_one(self):
        """A test on an index with one value is true in every step."""
        bundles = [(d, b.replace("stage = 1", "stage = 1 iter bound = 0")) for d, b in KERNEL]
        self.assertEqual(counted(bundles, {9, 13}, [1, 8])["once_bundles"], 0)
        self.assertEqual(counted(bundles, {9, 13}, [8, 1])["once_bundles"], 2)

    def test_last_step_of_a_run_time_bound(self):
        """An index compared with what was computed before the grid loop, or with what this step loaded."""
        bundles = list(KERNEL)
        bundles[0] = (0, bundles[0][1] + "  ;;  %s50_s7 = sld [smem:[%s9]]")
        bundles[3] = (1, bundles[3][1].replace("%s3_s2, 0", "%s3_s2, %s50_s7"))
        self.assertEqual(counted(bundles, {9, 13}, [8])["once_bundles"], 2)
        bundles[2] = (1, bundles[2][1] + "  ;;  %s51_s7 = sld [smem:[%s9]]")
        bundles[3] = (1, bundles[3][1].replace("%s50_s7", "%s51_s7"))
        self.assertEqual(counted(bundles, {9, 13}, [8])["once_bundles"], 0)

    def test_spilled_counter(self):
        """A counter that is kept in memory is followed there."""
        bundles = list(KERNEL)
        bundles[3] = (1, bundles[3][1] + "  ;;  %30 = sst [smem:[#allocation9_spill]] %s5_s3")
        bundles[7] = (1, bundles[7][1] + "  ;;  %s31_s3 = sld [smem:[#allocation9_spill]]")
        bundles[8] = (2, bundles[8][1].replace("%s5_s3", "%s31_s3"))
        self.assertEqual(counted(bundles, {9, 13}, [8])["loops"][0]["trips"], 5)

    def test_unknown_trip_count(self):
        bundles = [(d, b.replace("%s11_s4, 5", "%s11_s4, %s99_s9")) for d, b in KERNEL]
        report = counted(bundles, {9, 13}, [8])
        self.assertIsNone(report["loops"][0]["trips"])
        self.assertEqual(report["bundles_per_step"], 13 + 4)
        report = counted(bundles, {9, 13}, [8], trips=[7])
        self.assertEqual((report["loops"][0]["trips"], report["loops"][0]["trips_from"]), (7, "text"))
        self.assertEqual(report["bundles_per_step"], 13 + 7 * 4)
        # two loops in the text cannot be this one
        self.assertIsNone(counted(bundles, {9, 13}, [8], trips=[7, 2])["loops"][0]["trips"])

    def test_without_grid(self):
        report = counted(KERNEL[:1] + [(0, "%1 = vst x")] + KERNEL[23:], set(), [])
        self.assertEqual((report["step"], report["bundles_per_step"]), ("whole kernel", 3))

    def test_predicates(self):
        """Conjunctions, negations and predicates kept in scalar registers."""
        code = tpu_compile.Code(*[listing(KERNEL[:4] + [
            (1, "%p40_p0 = pneg %p4_p0"),
            (1, "%p41_p0 = scmp.lt.s32.totalorder %s3_s2, 4"),
            (1, "%p42_p0 = pand %p40_p0, %p41_p0"),
            (1, "%p43_p0 = por %p40_p0, %p41_p0"),
            (1, "%s44_s0 = scalar_select /*predicate=*/%p42_p0, /*on_true=*/1, /*on_false=*/0"),
            (1, "%p45_p0 = scmp.ne.s32.totalorder %s44_s0, 0"),
            (1, "%p46_p0 = pnand %p40_p0, %p41_p0"),
        ])] * 2, 1, [8])
        once = {name: (code.once(name, True), code.once(name, False))
                for name in ("p4_p0", "p40_p0", "p41_p0", "p42_p0", "p43_p0", "p45_p0", "p46_p0")}
        self.assertEqual(once, {
            "p4_p0": (False, True), "p40_p0": (True, False), "p41_p0": (False, False), "p42_p0": (True, False),
            "p43_p0": (False, False), "p45_p0": (True, False), "p46_p0": (False, True)})

    def test_disagreeing_dumps(self):
        with self.assertRaises(tpu_compile.Failure):
            tpu_compile.Code(listing(KERNEL), without(KERNEL, 19), 1, [8])

    def test_trips_in_text(self):
        text = (b'%0 = "stable_mosaic.arith.constant"() {value = 2 : i32} : () -> i32\n'
                b'%1 = "stable_mosaic.arith.constant"() {value = 20 : i32} : () -> i32\n'
                b'%2 = "stable_mosaic.arith.constant"() {value = 3 : i32} : () -> i32\n'
                b'"stable_mosaic.scf.for"(%0, %1, %2) ({})\n%3 = "stable_mosaic.scf.for"(%0, %n, %2, %4) ({})\n')
        self.assertEqual(tpu_compile.constant_trips(text), [6, None])
        self.assertEqual(tpu_compile.grid_of(b"iteration_bounds = array<i64: 16, -9223372036854775808>"),
                         [16, tpu_compile.DYNAMIC])


if __name__ == "__main__":
    unittest.main()
