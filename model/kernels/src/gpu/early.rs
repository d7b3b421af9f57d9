//! Kernels of a recorded step that start before the kernel in front of them has ended: programmatic dependent launch, for Hopper.
//!
//! ```text
//! kernel in front   ... its blocks have all started ──┐ ... writes ... ends
//! this kernel                                          └> starts, prefetches its weights, waits ─> reads and writes
//! ```
//!
//! A kernel that reads many weights lets the next one start behind its own wait: otherwise all kernels that fit on the GPU would prefetch at
//! once, and throw each other's weights out of the cache. Short kernels let the next one start at once.
//!
//! A step of one text is a hundred kernels of a few microseconds, and launching them one after the other takes as long as their work. A
//! kernel that is compiled to be early calls [`await_front`] before it reads or writes what another kernel of the step may touch. Its launch
//! is followed by [`launched`], which loosens the edge in front of it. An early kernel behind a tight edge does not wait.

use std::sync::atomic::{AtomicBool, Ordering};

use burn_cubecl::tensor::CubeTensor;
use cubecl::device_handle::DeviceHandle;
use cubecl::ir::pliron as _;
use cubecl::prelude::*;
use cubecl_environment::stream::StreamId;
use cubecl_ir::interfaces::side_effects::{MemoryEffect, MemoryEffectsOp};
use cubecl_ir::prelude::*;
use cubecl_ir::{CanMaterialize, HasSideEffects};
use cubecl_llvm::shared::intrinsic::call_void;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;

use super::async_copy::{GLOBAL, in_space};
use super::hardware::is_hopper;
use super::instruction::order;
use super::ordered_sum::{address, replace_by_asm};
use crate::device_queue::{Server, loosen_last_edge};

/// Whether a thread records a step.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

/// Lets kernels be early until it is dropped.
#[derive(Debug)]
pub(crate) struct Recording(());

impl Recording {
    /// Begins to record a step. No other thread does.
    pub(crate) fn new() -> Self {
        IS_RECORDING.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        IS_RECORDING.store(false, Ordering::Relaxed);
    }
}

/// Whether kernels that `client` launches now are to be early.
pub(crate) fn is_wanted(client: &Client) -> bool {
    IS_RECORDING.load(Ordering::Relaxed) && is_hopper(client)
}

/// Loosens the edge in front of the kernel that was launched last and writes `out`, if it `is_early`.
pub(crate) fn launched(out: &CubeTensor, is_early: bool) {
    if is_early {
        let stream = StreamId::current();
        DeviceHandle::<Server>::new(out.device.to_id()).submit(move |server| loosen_last_edge(server, stream));
    }
}

order!(
    /// Lets the next kernel start once all blocks of this one have come here.
    start_next,
    StartNextOp,
    "kiln.start_next",
    "llvm.nvvm.griddepcontrol.launch.dependents"
);
order!(
    /// Waits until the kernel in front has ended, and what it wrote can be read. See [`changed`].
    await_front,
    AwaitFrontOp,
    "kiln.await_front",
    "llvm.nvvm.griddepcontrol.wait"
);

#[cube_op(name = "kiln.changed")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct ChangedOp {
    buffer: Value,
}

#[op_interface_impl]
impl MemoryEffectsOp for ChangedOp {
    fn memory_effects(&self, ctx: &Context) -> Vec<MemoryEffect> {
        vec![MemoryEffect::Write(self.buffer(ctx))]
    }
}

#[op_interface_impl]
impl ToLLVMDialect for ChangedOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let buffer = self.buffer(ctx);
        let buffer = address(ctx, rewriter, buffer, GLOBAL);
        replace_by_asm(ctx, rewriter, self.get_operation(), vec![buffer], ("", "l,~{memory}"));
        Ok(())
    }
}

/// Says behind [`await_front`] that kernels in front of an early one may have written `buffer`. Without it, loads of a buffer that a kernel
/// only reads are loads of constants, which the assembler moves in front of the wait. Costs nothing.
#[cube]
pub(crate) fn changed<V: CubePrimitive>(buffer: &[V], #[comptime] is_early: bool) {
    if is_early {
        mark_changed(buffer);
    }
}

#[cube]
fn mark_changed<V: CubePrimitive>(buffer: &[V]) {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "no instruction is emitted")]
        let buffer = unsafe { *buffer.__expand_as_ptr_method(scope) }.value(scope);
        let op = ChangedOp::new(scope.ctx_mut(), buffer);
        scope.register(&op);
    })
}

#[cube_op(name = "kiln.prefetch")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct PrefetchOp {
    place: Value,
}

#[op_interface_impl]
impl MemoryEffectsOp for PrefetchOp {
    fn memory_effects(&self, ctx: &Context) -> Vec<MemoryEffect> {
        vec![MemoryEffect::Read(self.place(ctx))]
    }
}

#[op_interface_impl]
impl ToLLVMDialect for PrefetchOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let place = self.place(ctx);
        let place = in_space(ctx, rewriter, place, GLOBAL);
        call_void(ctx, rewriter, "llvm.nvvm.prefetch.global.L2", vec![place]);
        rewriter.erase_operation(ctx, self.get_operation());
        Ok(())
    }
}

/// Moves the 32 bytes around the first number of `at` to the L2 cache. Right at any time: a later write changes them there.
#[cube]
pub(crate) fn prefetch<V: CubePrimitive>(at: &[V]) {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "nothing is read into the program")]
        let place = unsafe { *at.__expand_as_ptr_method(scope) }.value(scope);
        let op = PrefetchOp::new(scope.ctx_mut(), place);
        scope.register(&op);
    })
}

/// Begins an early kernel that prefetches nothing. Does nothing in other kernels.
#[cube]
pub(crate) fn begin(#[comptime] is_early: bool) {
    if is_early {
        start_next();
        await_front();
    }
}
