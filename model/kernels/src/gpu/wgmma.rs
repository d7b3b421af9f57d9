//! Warpgroup matrix products: `wgmma` of the PTX ISA, "Asynchronous warpgroup-level matrix instructions". The right operand is in
//! shared memory, the left one in shared memory or in registers.
//!
//! Unlike CubeCL's own front end, these functions leave it to the kernel when to fence, commit and wait. CubeCL fences before each
//! instruction whose left operand is in registers, and each fence waits for the instruction before it: a product of four
//! instructions takes four times their latency. Here a kernel fences once per product and keeps several products in flight.
//!
//! The rules: [`pin`] every array of registers that was written, then [`fence`], then multiply any number of times, then
//! [`commit`]. After [`wait`], [`pin`] the registers that the product wrote and read, so that no access moves before the wait.
//!
//! Three things make the driver run one product at a time, silently:
//! - a call anywhere in the kernel; a division in full precision is one, `crate::gpu::instruction` has alternatives;
//! - an accumulator that anything but a product writes while products are in flight;
//! - an accumulator that is zeroed on a path around a loop whose products are still in flight.
//!
//! The driver assembles like `ptxas -c -v`, which reports this (notes C7509 to C7517) and counts registers as the device will. One of
//! [`crate::device_queue::programs`] is assembled without `-c`.
//! `CUBECL_CUDA_DUMP_PTX=FOLDER` writes the PTX that the driver gets.

use cubecl::prelude::*;
use cubecl::wgmma::{Swizzle, WgmmaTileLayout};
use cubecl_ir::Scope;
use cubecl_ir::dialect::matrix::{
    WARPGROUP_M, WgmmaCommitGroupOp, WgmmaDescriptorOp, WgmmaFenceOp, WgmmaFenceOperandOp, WgmmaMajor, WgmmaOp,
    WgmmaWaitGroupOp,
};
use cubecl_ir::types::MatrixShape;
use cubecl_ir::types::scalar::{Float8E4M3Type, Float8E5M2Type};
use pliron::builtin::attributes::TypeAttr;
use pliron::r#type::TypeHandle;
use pliron::value::Value;

use crate::fp8::Fp8;

/// Bytes of the summed dimension per instruction.
pub(crate) const STEP_BYTES: usize = 32;
/// 16-bit elements of the summed dimension per instruction.
pub(crate) const K_STEP: usize = STEP_BYTES / 2;
/// Elements of a 64 x [`K_STEP`] left operand that a thread holds.
pub(crate) const FRAGMENT: usize = 8;

/// Returns the half of a descriptor of `tile`, in shared memory, that depends on its address. The tile begins at a multiple of 1024
/// bytes; the descriptor of one that begins `n` bytes later is larger by `n / 16`.
#[cube]
pub(crate) fn describe<E: CubePrimitive>(tile: &[E], #[comptime] layout: WgmmaTileLayout) -> u32 {
    u32::cast_from(descriptor::<E>(tile, layout))
}

/// Returns the whole descriptor of `tile`, in shared memory, which begins at a multiple of 1024 bytes.
#[cube]
pub(crate) fn descriptor<E: CubePrimitive>(tile: &[E], #[comptime] layout: WgmmaTileLayout) -> u64 {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "the pointer goes into a descriptor, within the tile's lifetime")]
        let ptr = unsafe { *tile.__expand_as_ptr_method(scope) }.value(scope);
        let (leading, stride) = (layout.leading_byte_offset(), layout.stride_byte_offset());
        let op = WgmmaDescriptorOp::new(scope.ctx_mut(), ptr, leading, stride, layout.swizzle);
        scope.register_with_result(&op).into()
    })
}

/// Returns the whole descriptor, at step `step` of the summed dimension. The other half is a constant, which the assembler keeps:
/// it adds to one register instead of to two with a carry.
#[cube]
fn at_step(tile: u32, #[comptime] step: usize, #[comptime] layout: WgmmaTileLayout) -> u64 {
    // The address field counts 16 bytes, and no address in shared memory carries out of it.
    let low = tile + comptime![layout.byte_offset(0, step * K_STEP, 2) as u32 >> 4];
    u64::cast_from(low) | comptime![upper_half(layout)]
}

/// Returns the descriptor of the part of `tile` that begins at row `row` and step `step` of the summed dimension, of elements of
/// `element_bytes` bytes. The row may be known at run time only.
#[cube]
pub(crate) fn at_row(
    tile: u64,
    row: usize,
    #[comptime] step: usize,
    #[comptime] layout: WgmmaTileLayout,
    #[comptime] element_bytes: usize,
) -> u64 {
    let offset = layout.byte_offset(row, comptime![step * STEP_BYTES / element_bytes], element_bytes);
    tile + (offset as u64 >> 4)
}

/// Returns the stride and the swizzle in their fields of a descriptor.
fn upper_half(layout: WgmmaTileLayout) -> u64 {
    let swizzle = match layout.swizzle {
        Swizzle::None => 0,
        Swizzle::B128 => 1,
        Swizzle::B64 => 2,
        Swizzle::B32 => 3,
    };
    (layout.stride_byte_offset() as u64 >> 4) << 32 | swizzle << 62
}

/// Issues `acc += a * b`, a 64 x `n` product, where `b` is step `step` of the summed dimension of the tile that `tile` describes.
/// The product is still in flight when this returns.
#[cube]
pub(crate) fn multiply<E: Float>(
    acc: &mut Array<f32>,
    a: &Array<E>,
    tile: u32,
    #[comptime] step: usize,
    #[comptime] layout: WgmmaTileLayout,
) {
    let b = at_step(tile, step, layout);
    intrinsic!(|scope| {
        let operands = [a.read_value(scope), b.read_value(scope)];
        enqueue(scope, operands, acc.__extract_list(scope), E::__expand_as_type(scope), layout)
    })
}

/// [`multiply`] with the left operand in shared memory as well: the 64 rows that `a` describes.
#[cube]
pub(crate) fn multiply_shared<E: Float>(
    acc: &mut Array<f32>,
    a: u32,
    tile: u32,
    #[comptime] step: usize,
    #[comptime] a_layout: WgmmaTileLayout,
    #[comptime] layout: WgmmaTileLayout,
) {
    let a = at_step(a, step, a_layout);
    let b = at_step(tile, step, layout);
    intrinsic!(|scope| {
        let operands = [a.read_value(scope), b.read_value(scope)];
        let (acc, element) = (acc.__extract_list(scope), E::__expand_as_type(scope));
        issue(scope, operands, acc, [element; 2], [layout.rows, K_STEP], [a_layout.major, layout.major]);
    })
}

/// Issues `acc += a * b`, a 64 x `columns` product of the tiles that the whole descriptors `a` and `b` describe, over `k` elements.
#[cube]
pub(crate) fn multiply_described<E: Float>(
    acc: &mut Array<f32>,
    a: u64,
    b: u64,
    #[comptime] k: usize,
    #[comptime] columns: usize,
    #[comptime] a_major: WgmmaMajor,
    #[comptime] b_major: WgmmaMajor,
) {
    intrinsic!(|scope| {
        let operands = [a.read_value(scope), b.read_value(scope)];
        let (acc, element) = (acc.__extract_list(scope), E::__expand_as_type(scope));
        issue(scope, operands, acc, [element; 2], [columns, k], [a_major, b_major]);
    })
}

/// [`multiply_described`] of [`STEP_BYTES`] numbers in FP8 along K.
#[cube]
pub(crate) fn multiply_fp8(
    acc: &mut Array<f32>,
    a: u64,
    b: u64,
    #[comptime] columns: usize,
    #[comptime] formats: [Fp8; 2],
) {
    intrinsic!(|scope| {
        let operands = [a.read_value(scope), b.read_value(scope)];
        let acc = acc.__extract_list(scope);
        let elements = formats.map(|format| match format {
            Fp8::E4M3 => Float8E4M3Type::get(scope.ctx()).into(),
            Fp8::E5M2 => Float8E5M2Type::get(scope.ctx()).into(),
        });
        issue(scope, operands, acc, elements, [columns, STEP_BYTES], [WgmmaMajor::K; 2]);
    })
}

/// Issues an instruction with a left operand whose rows run along the summed dimension.
fn enqueue(scope: &Scope, operands: [Value; 2], acc: Value, element: TypeHandle, layout: WgmmaTileLayout) {
    issue(scope, operands, acc, [element; 2], [layout.rows, K_STEP], [WgmmaMajor::K, layout.major]);
}

/// Issues an instruction. The type of `a` decides the kind of left operand: registers, or a descriptor.
fn issue(
    scope: &Scope,
    [a, b]: [Value; 2],
    acc: Value,
    elements: [TypeHandle; 2],
    [columns, k]: [usize; 2],
    [a_major, b_major]: [WgmmaMajor; 2],
) {
    let [of_a, of_b] = elements.map(TypeAttr::new);
    let shape = MatrixShape { m: WARPGROUP_M, n: columns, k };
    let op = WgmmaOp::new(scope.ctx_mut(), a, b, acc, of_a, of_b, shape, a_major, b_major);
    scope.register(&op);
}

/// Returns a thread's share of a zeroed 64 x `columns` accumulator.
#[cube]
pub(crate) fn zeros(#[comptime] columns: usize) -> Array<f32> {
    let mut values = Array::<f32>::new(comptime![columns / 2]);
    #[unroll]
    for i in 0..comptime![columns / 2] {
        values[i] = 0.0f32;
    }
    values
}

/// Returns row and column of element `nth` of the accumulator that thread `thread` of a warpgroup holds.
///
/// A warp holds 16 rows. A thread holds two neighbours of row `lane / 4`, the two 8 rows below, and so on every 8 columns.
#[cube]
pub(crate) fn position(thread: u32, nth: u32) -> (u32, u32) {
    let warp = thread / 32;
    let lane = thread % 32;
    let chunk = nth / 2;
    let row = warp * 16 + lane / 4 + (chunk % 2) * 8;
    let column = (chunk / 2) * 8 + (lane % 4) * 2 + nth % 2;
    (row, column)
}

/// Orders this thread's writes to registers before the products that follow.
#[cube]
pub(crate) fn fence() {
    intrinsic!(|scope| scope.register(&WgmmaFenceOp::new(scope.ctx_mut())))
}

/// Makes the products since the last commit one group.
#[cube]
pub(crate) fn commit() {
    intrinsic!(|scope| scope.register(&WgmmaCommitGroupOp::new(scope.ctx_mut())))
}

/// Waits until at most the `pending` youngest groups are in flight.
#[cube]
pub(crate) fn wait(#[comptime] pending: usize) {
    intrinsic!(|scope| scope.register(&WgmmaWaitGroupOp::new(scope.ctx_mut(), pending)))
}

/// Keeps `registers` where they are: the compiler moves no access to them across this point.
#[cube]
pub(crate) fn pin<E: CubePrimitive>(registers: &Array<E>) {
    intrinsic!(|scope| {
        let registers = registers.__extract_list(scope);
        scope.register(&WgmmaFenceOperandOp::new(scope.ctx_mut(), registers))
    })
}

/// [`pin`] for each of `fragments`.
#[cube]
pub(crate) fn pin_all<E: Float>(fragments: &Sequence<Array<E>>) {
    #[unroll]
    for i in 0..fragments.len() {
        pin(fragments.index(i));
    }
}
