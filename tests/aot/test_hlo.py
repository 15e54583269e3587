"""The reader of optimized HLO, on text as libtpu writes it; needs no libtpu."""

from __future__ import annotations

import pytest

from torchtpu_core.aot import cost, hlo, result

_TEXT = """HloModule m, is_scheduled=true, num_partitions=8

FileNames
1 "model.py"

FunctionNames
1 "layer/mm"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%fused (p0: bf16[8,16], p1: bf16[16,4]) -> f32[8,4] {
  %p0 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %dot = f32[8,4]{1,0:T(8,128)} convolution(%p0, %p1), dim_labels=bf_io->bf
}

%body (t: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %x = f32[8,4]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %add = f32[8,4]{1,0:T(8,128)} add(%x, %x), backend_config={"window_config":{"estimated_cycles":"10"}}
  %ar = f32[8,4]{1,0} all-reduce(%add), channel_id=3, replica_groups={{0,1},{2,3}}, to_apply=%sum
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %r = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) tuple(%i, %ar)
}

%cond (t.1: (s32[], f32[8,4])) -> pred[] {
  %t.1 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  ROOT %c = pred[] constant(true)
}

ENTRY %main (a: bf16[8,16], w: bf16[2,4]) -> f32[8,4] {
  %a = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[2,4]{1,0} parameter(1)
  %ag = (bf16[2,4]{1,0}, bf16[16,4]{1,0:S(1)}) all-gather-start(%w), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}
  %agd = bf16[16,4]{1,0:S(1)} all-gather-done(%ag)
  %f = f32[8,4]{1,0:T(8,128)} fusion(%a, %agd), kind=kOutput, calls=%fused, metadata={op_name="layer/mm" stack_frame_id=1}, backend_config={"window_config":{"estimated_cycles":"100"}}
  %zero = s32[]{:T(128)} constant(0)
  %init = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) tuple(%zero, %f)
  %loop = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) while(%init), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %out = f32[8,4]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""  # noqa: E501
_BUFFERS = """BufferAssignment:
allocation 0: size 256, page 0, parameter 0, shape |bf16[8,16]| at ShapeIndex {}:
 value: <1 a @0> (size=256,offset=0): bf16[8,16]{1,0}
allocation 1: size 384, page 0, preallocated-temp:
 value: <2 f @0> (size=128,offset=0): f32[8,4]{1,0}
 value: <3 add @0> (size=128,offset=128): f32[8,4]{1,0}
 value: <4 ar @0> (size=128,offset=128): f32[8,4]{1,0}
allocation 2: size 64, color 1, page 0, preallocated-temp:
 value: <5 agd @1> (size=64,offset=0): bf16[16,4]{1,0:S(1)}
"""
_RANGES = """  BufferLiveRange:
    f{}:2-4
    add{}:3-4
    ar{}:4-6
    agd{}:1-2
"""


@pytest.fixture
def analysis() -> result.Analysis:
    return result.analyse(_TEXT, _BUFFERS, _RANGES, 8, ["input", "weight"])


def test_cycles_count_loops_by_their_trips(analysis: result.Analysis) -> None:
    assert analysis.cycles == 100 + 5 * 10


_COUNTED = """
%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[]{:T(128)}, f32[4]{0}) parameter(0)
  %two = s32[] constant(2)
  %i = s32[] copy(%t#0)
  %next = s32[] add(%i, %two)
  %x = f32[4]{0} collective-permute(%t#1), channel_id=1, source_target_pairs={{0,1},{1,0}}
  ROOT %r = (s32[]{:T(128)}, f32[4]{0}) tuple(%next, %x)
}

%cond (t.1: (s32[], f32[4])) -> pred[] {
  %t.1 = (s32[]{:T(128)}, f32[4]{0}) parameter(0)
  %limit = s32[] constant(7)
  ROOT %c = pred[] compare(%t.1#0, %limit), direction=LT
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %copy = s32[] copy(%zero)
  %init = (s32[]{:T(128)}, f32[4]{0}) tuple(%copy, %a)
  %loop = (s32[]{:T(128)}, f32[4]{0}) while(%init), condition=%cond, body=%body
  ROOT %out = f32[4]{0} get-tuple-element(%loop), index=1
}
"""


@pytest.mark.parametrize(
    ("was", "becomes", "trips"),
    [
        ("", "", 4),  # 0, 2, 4, 6
        ("constant(7)", "constant(8)", 4),
        ("constant(2)", "constant(1)", 7),
        ("constant(0)", "constant(5)", 1),
        ("direction=LT", "direction=NE", 1),  # not known
    ],
)
def test_trips_of_counters_that_the_compiler_has_not_noted(
    was: str, becomes: str, trips: int
) -> None:
    (c,) = result.analyse(_COUNTED.replace(was, becomes), "", "", 2, ["a"]).collectives
    assert c == result.Collective("collective-permute", 2, trips, 16 * trips, 16 * trips, "", "")


def test_collectives_on_another_core() -> None:
    text = """
%called (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
}, execution_thread="sparsecore"

%async (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %c = f32[8]{0} custom-call(%q), custom_call_target="x", called_computations={%called}
}, execution_thread="sparsecore"

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}), f32[8]{0}) async-start(%a), async_execution_thread="sparsecore", calls=%async, metadata={op_name="w"}
  ROOT %d = f32[8]{0} async-done(%s)
}
"""  # noqa: E501
    (c,) = result.analyse(text, "", "", 2, ["a"]).collectives
    assert c == result.Collective("all-reduce", 2, 1, 32, 32, "", "w")


def test_ops_have_names_lines_and_bytes_of_hbm(analysis: result.Analysis) -> None:
    top = analysis.ops[0]
    assert (top.name, top.source, top.cycles) == ("layer/mm", "model.py:7", 100)
    assert top.bytes == 2 * 8 * 16 + 4 * 8 * 4  # the gathered weight is in VMEM


def test_collectives(analysis: result.Analysis) -> None:
    reduce, gather = analysis.collectives
    size = 4 * 8 * 4
    assert reduce == result.Collective("all-reduce", 2, 5, 5 * size, 5 * size, "")
    whole = 2 * 16 * 4
    assert gather == result.Collective("all-gather", 8, 1, whole, whole * 7 // 8, "")


_SCATTER = """HloModule m, is_scheduled=true, num_partitions=4

%all-reduce-scatter (input: f32[16,4]) -> f32[4,4] {
  %input = f32[16,4]{1,0:T(8,128)} parameter(0)
  %ar = f32[16,4]{1,0:T(8,128)} all-reduce(%input), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%sum
  %id = u32[] partition-id()
  ROOT %slice = f32[4,4]{1,0:T(8,128)} dynamic-slice(%ar, %id, %id), dynamic_slice_sizes={4,4}
}

ENTRY %main (a: f32[16,4]) -> f32[4,4] {
  %a = f32[16,4]{1,0:T(8,128)} parameter(0)
  ROOT %f = f32[4,4]{1,0:T(8,128)} fusion(%a), kind=kCustom, calls=%all-reduce-scatter, metadata={op_name="backward/mm"}
}
"""  # noqa: E501


def test_a_fusion_of_all_reduce_and_slice_is_a_reduce_scatter() -> None:
    (c,) = result.analyse(_SCATTER, "", "", 4, ["a"]).collectives
    size = 4 * 4 * 4
    assert c == result.Collective("reduce-scatter", 4, 1, size, 3 * size, "", "backward/mm")


def test_buffers_and_timeline(analysis: result.Analysis) -> None:
    sizes = [(b.name, b.size, b.kind) for b in analysis.buffers]
    assert sizes[0] == ("input", 256, "parameter") and len(sizes) == 3
    assert analysis.timeline == ((2, 128), (3, 256), (5, 128), (7, 0))


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("[2,4]<=[8]", 4),
        ("{{0,1},{2,3}}", 2),
        ("mesh['x'=4,'y'=2] {'x'}", 4),
        ("mesh['x'=4,'y'=2] {'x','y'}", 8),
        ("{}", 8),
    ],
)
def test_group_size(groups: str, size: int) -> None:
    line = f"(%x), channel_id=1, replica_groups={groups}, to_apply=%add"
    assert hlo.group_size(hlo.Instruction("a", "f32[]", "all-reduce", line, False), 8) == size


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[2,3]{1,0}", 24),
        ("(bf16[4], (s8[2], pred[3]))", 13),
        ("s4[3]", 1),
        ("f8e4m3fn[7]", 7),
        ("c64[]", 8),
        ("u32[<=4]", 16),
        ("token[]", 0),
    ],
)
def test_shape_bytes(shape: str, size: int) -> None:
    assert hlo.shape_bytes(shape) == size
    assert hlo.tuple_parts("(f32[2,3]{1,0:T(8,128)}, (s8[2], u8[]))") == [
        "f32[2,3]{1,0:T(8,128)}",
        "(s8[2], u8[])",
    ]


@pytest.mark.parametrize(
    ("out", "left", "right", "rest", "pairs"),
    [
        ("[8,4]", "[8,16]", "[16,4]", "convolution(%a, %b), dim_labels=bf_io->bf", 8 * 16 * 4),
        (  # a batch of products, as libtpu writes it
            "[64,32,48]", "[64,32,16]", "[64,48,16]",
            "convolution(%a, %b), window={size=64 stride=63 lhs_dilate=64}, "
            "dim_labels=0bf_0oi->0bf",
            64 * 32 * 48 * 16,
        ),
        (  # padding meets no element
            "[2,8,8,5]", "[2,8,8,3]", "[3,3,3,5]",
            "convolution(%a, %b), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            2 * 3 * 5 * (8 * 3 - 2) ** 2,
        ),
        (
            "[2,3,4]", "[2,7,8]", "[3,8,4]",
            "convolution(%a, %b), window={size=3 stride=2}, dim_labels=b0f_0io->b0f",
            2 * 8 * 4 * 3 * 3,
        ),
        ("[4,3]", "[4,8]", "[8,3]", "dot(%a, %b), lhs_contracting_dims={1}", 4 * 8 * 3),
    ],
)  # fmt: skip
def test_flops_of_products(out: str, left: str, right: str, rest: str, pairs: int) -> None:
    module = hlo.parse(f"ENTRY %m (a: f32[]) -> f32[] {{\n  ROOT %x = f32{out} {rest}\n}}\n")
    (i,) = module.computations["m"]
    assert cost.flops(module, i, {"a": f"f32{left}", "b": f"f32{right}"}) == 2 * pairs


def test_rounds_of_loops_are_counted() -> None:
    product = "convolution(%t#1, %t#1), dim_labels=bf_io->bf"
    text = _COUNTED.replace("f32[4]", "f32[4,4]").replace(
        "collective-permute(%t#1), channel_id=1, source_target_pairs={{0,1},{1,0}}", product
    )
    found = result.analyse(text, "", "", 1, ["a"])
    assert found.repeated_flops == 3 * 2 * 4**3
    assert found.repeated_bytes >= 3 * 3 * 4 * 4 * 4  # and the counter


def test_slices_move_only_their_part() -> None:
    text = """
%fused (p: f32[64,8], q: s32[], u: f32[1,8]) -> f32[64,8] {
  %p = f32[64,8]{1,0} parameter(0)
  %q = s32[] parameter(1)
  %u = f32[1,8]{1,0} parameter(2)
  ROOT %d = f32[64,8]{1,0} dynamic-update-slice(%p, %u, %q, %q)
}

ENTRY %main (a: f32[64,8], i: s32[]) -> f32[64,8] {
  %a = f32[64,8]{1,0} parameter(0)
  %i = s32[]{:S(2)} parameter(1)
  %s = f32[1,8]{1,0} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,8}
  ROOT %f = f32[64,8]{1,0} fusion(%a, %i, %s), kind=kLoop, calls=%fused
}
"""
    module = hlo.parse(text)
    shapes = {i.name: i.shape for i in module.computations["main"]}
    _, _, part, update = module.computations["main"]
    assert cost.moved(module, part, shapes) == 2 * 32
    assert cost.moved(module, update, shapes) == 2 * 32
