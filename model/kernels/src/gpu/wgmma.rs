//! Warpgroup matrix products with the left operand in registers and the right one in shared memory (PTX ISA, "Asynchronous
//! warpgroup-level matrix instructions"), with what CubeCL's own front end hides: when to fence, commit and wait.
//!
//! CubeCL fences before each instruction whose left operand is in registers, and each fence waits for the instruction before:
//! a product of four instructions takes four times their latency. Here a kernel fences once a product and keeps several
//! products in flight.
//!
//! The rules: [`pin`] every array of registers that was written, then [`fence`], then [`multiply`] any number of times, then
//! [`commit`]. After [`wait`], [`pin`] what the product wrote and what it read, so that no access moves before the wait.
//!
//! What makes the driver run one product at a time all the same, without a word: a call anywhere in the kernel (a division in
//! full precision is one; `crate::gpu::instruction` has those that are not), an accumulator that anything but a product writes
//! while products run, and one that is zeroed on a path around a loop whose products run on. The driver assembles as
//! `ptxas -c -v` does, which says so (notes C7509 to C7517) and counts registers as the device will; `CUBECL_CUDA_DUMP_PTX=FOLDER`
//! writes what it is given.

use cubecl::prelude::*;
use cubecl::wgmma::{Swizzle, WgmmaTileLayout};
use cubecl_ir::Scope;
use cubecl_ir::dialect::matrix::{
    WARPGROUP_M, WgmmaCommitGroupOp, WgmmaDescriptorOp, WgmmaFenceOp, WgmmaFenceOperandOp, WgmmaMajor, WgmmaOp,
    WgmmaWaitGroupOp,
};
use cubecl_ir::types::MatrixShape;
use pliron::builtin::attributes::TypeAttr;
use pliron::r#type::TypeHandle;
use pliron::value::Value;

/// Columns of the left operand that one instruction reads: 32 bytes of two-byte elements.
pub(crate) const K_STEP: usize = 16;
/// Elements that a unit holds of a 64 x [`K_STEP`] left operand.
pub(crate) const FRAGMENT: usize = 8;

/// What an instruction reads the shared tile `tile` through: the half of its descriptor that depends on where the tile is. The
/// tile starts at a multiple of 1024 bytes; one `n` bytes further on is described by `n / 16` more.
#[cube]
pub(crate) fn describe<E: CubePrimitive>(tile: &[E], #[comptime] layout: WgmmaTileLayout) -> u32 {
    u32::cast_from(descriptor::<E>(tile, layout))
}

#[cube]
fn descriptor<E: CubePrimitive>(tile: &[E], #[comptime] layout: WgmmaTileLayout) -> u64 {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "the pointer goes into a descriptor, within the tile's lifetime")]
        let ptr = unsafe { *tile.__expand_as_ptr_method(scope) }.value(scope);
        let (leading, stride) = (layout.leading_byte_offset(), layout.stride_byte_offset());
        let op = WgmmaDescriptorOp::new(scope.ctx_mut(), ptr, leading, stride, layout.swizzle);
        scope.register_with_result(&op).into()
    })
}

/// The whole descriptor, of step `step` of the summed dimension. The other half is a constant: the assembler keeps it, and adds
/// to one register instead of two with a carry.
#[cube]
fn at_step(tile: u32, #[comptime] step: usize, #[comptime] layout: WgmmaTileLayout) -> u64 {
    // The address field counts 16 bytes, and no address in shared memory carries out of it.
    let low = tile + comptime![layout.byte_offset(0, step * K_STEP, 2) as u32 >> 4];
    u64::cast_from(low) | comptime![upper_half(layout)]
}

/// The stride and the swizzle, where a descriptor has them.
fn upper_half(layout: WgmmaTileLayout) -> u64 {
    assert!(layout.swizzle == Swizzle::B128, "the only one that is used here");
    (layout.stride_byte_offset() as u64 >> 4) << 32 | 1 << 62
}

/// `acc += a * b`, a 64 x `n` product, from step `step` of the summed dimension of the tile that `tile` describes. Runs
/// on after the call.
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

/// [`multiply`] with a left operand in shared memory too, 64 rows that `a` describes.
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
        enqueue(scope, operands, acc.__extract_list(scope), E::__expand_as_type(scope), layout)
    })
}

/// The instruction of both kinds of left operand, which is told by `a`'s type: registers, or a descriptor.
fn enqueue(scope: &Scope, [a, b]: [Value; 2], acc: Value, element: TypeHandle, layout: WgmmaTileLayout) {
    let element = TypeAttr::new(element);
    let shape = MatrixShape { m: WARPGROUP_M, n: layout.rows, k: K_STEP };
    let op = WgmmaOp::new(scope.ctx_mut(), a, b, acc, element.clone(), element, shape, WgmmaMajor::K, layout.major);
    scope.register(&op);
}

/// Orders this unit's writes to registers before the products that follow.
#[cube]
pub(crate) fn fence() {
    intrinsic!(|scope| scope.register(&WgmmaFenceOp::new(scope.ctx_mut())))
}

/// Makes one group of the products since the last commit.
#[cube]
pub(crate) fn commit() {
    intrinsic!(|scope| scope.register(&WgmmaCommitGroupOp::new(scope.ctx_mut())))
}

/// Waits until at most the `pending` youngest groups run on.
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
