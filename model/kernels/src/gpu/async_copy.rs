//! Asynchronous copies of 16 bytes from memory to shared memory: `cp.async` of the PTX ISA, for GPUs without TMA.
//!
//! A thread's copies since its last [`commit`] are a group, and [`wait`] waits for its older groups. What other threads have copied
//! is there after a barrier of the block that follows their waits.

use cubecl::ir::pliron as _;
use cubecl::prelude::*;
use cubecl_ir::attributes::IndexAttr;
use cubecl_ir::interfaces::side_effects::{MemoryEffect, MemoryEffectsOp};
use cubecl_ir::prelude::*;
use cubecl_ir::{CanMaterialize, HasSideEffects};
use cubecl_llvm::shared::intrinsic::call_void;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;
use pliron_llvm::op_interfaces::CastOpInterface as _;
use pliron_llvm::ops::AddrSpaceCastOp;
use pliron_llvm::types::PointerType;

use super::instruction::{constant, order};

/// LLVM's numbers of the address spaces.
pub(super) const GLOBAL: u32 = 1;
pub(super) const SHARED: u32 = 3;

#[cube_op(name = "kiln.copy_async")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct CopyOp {
    source: Value,
    destination: Value,
    bytes: Value,
}

#[op_interface_impl]
impl MemoryEffectsOp for CopyOp {
    fn memory_effects(&self, ctx: &Context) -> Vec<MemoryEffect> {
        vec![MemoryEffect::Read(self.source(ctx)), MemoryEffect::Write(self.destination(ctx))]
    }
}

#[op_interface_impl]
impl ToLLVMDialect for CopyOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let (source, destination, bytes) = (self.source(ctx), self.destination(ctx), self.bytes(ctx));
        let source = in_space(ctx, rewriter, source, GLOBAL);
        let destination = in_space(ctx, rewriter, destination, SHARED);
        call_void(ctx, rewriter, "llvm.nvvm.cp.async.cg.shared.global.16.s", vec![destination, source, bytes]);
        rewriter.erase_operation(ctx, self.get_operation());
        Ok(())
    }
}

/// Returns `pointer` as a pointer into address space `space`.
pub(super) fn in_space(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    pointer: Value,
    space: u32,
) -> Value {
    let wanted = PointerType::get(ctx, space).into();
    if pointer.get_type(ctx) == wanted {
        return pointer;
    }
    let cast = AddrSpaceCastOp::new(ctx, pointer, wanted);
    rewriter.insert_op(ctx, &cast);
    cast.get_result(ctx)
}

order!(
    /// Makes this thread's copies since its last commit one group.
    commit,
    CommitOp,
    "kiln.copy_async_commit",
    "llvm.nvvm.cp.async.commit.group"
);

#[cube_op(name = "kiln.copy_async_wait")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct WaitOp {
    pending: IndexAttr,
}

#[op_interface_impl]
impl ToLLVMDialect for WaitOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let pending = self.pending(ctx).0 as i32;
        let pending = constant(ctx, rewriter, pending);
        call_void(ctx, rewriter, "llvm.nvvm.cp.async.wait.group", vec![pending]);
        rewriter.erase_operation(ctx, self.get_operation());
        Ok(())
    }
}

/// Starts to copy the first `bytes` bytes, of at most 16, of the vector in `source` to the vector in `destination`, whose other
/// bytes become 0. Both begin at a multiple of 16 bytes. Nothing is read if `bytes` is 0.
#[cube]
pub(crate) fn copy<V: CubePrimitive>(source: &[V], destination: &mut [V], bytes: u32) {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "the copy ends before the next barrier that follows its wait")]
        let source = unsafe { *source.__expand_as_ptr_method(scope) }.value(scope);
        #[expect(unsafe_code, reason = "the copy ends before the next barrier that follows its wait")]
        let destination = unsafe { *destination.__expand_as_ptr_method(scope) }.value(scope);
        let bytes = bytes.read_value(scope);
        let op = CopyOp::new(scope.ctx_mut(), source, destination, bytes);
        scope.register(&op);
    })
}

/// Waits until at most the `pending` youngest groups of this thread are in flight.
#[cube]
pub(crate) fn wait(#[comptime] pending: usize) {
    intrinsic!(|scope| {
        let op = WaitOp::new(scope.ctx_mut(), pending);
        scope.register(&op);
    })
}
