//! Sums in memory that several blocks add to, one after another in a fixed order, so that their bits do not depend on timing.
//!
//! Each sum has a lock: a number that counts the parts that have been added. A block [`await_turn`]s the number of parts that come
//! before its own. It then moves its part from shared memory by [`store_bulk`] if it is the first and by [`add_bulk`] if not,
//! [`commit`]s the move, and calls [`pass_turn`] on the lock when [`settle`] has returned. All of this is done by one thread.
//!
//! Nobody waits forever if a block only waits for blocks that started before it.
//!
//! `cp.reduce.async.bulk`, `ld.acquire` and `red.release` of the PTX ISA. [`settle`] is the wait without `.read`: the other one returns when
//! shared memory has been read, before the sum has been written. The count is a release. Without it, a line of 128 bytes of a sum was
//! counted before it was written, seen once in some 260,000 rows (`benches/results/2026-11-30-h200-races.md`).

use cubecl::ir::pliron as _;
use cubecl::prelude::*;
use cubecl_ir::interfaces::side_effects::{MemoryEffect, MemoryEffectsOp};
use cubecl_ir::prelude::*;
use cubecl_ir::{CanMaterialize, HasSideEffects};
use cubecl_llvm::shared::intrinsic::{call_void, i64_ty};
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;
use pliron_llvm::op_interfaces::CastOpInterface as _;
use pliron_llvm::ops::{InlineAsmOp, PtrToIntOp};
use pliron_llvm::types::VoidType;

use super::async_copy::{GLOBAL, SHARED, in_space};
use super::instruction::order;

/// Replaces `op` by an instruction with side effects, of which `constraints` names the register classes of `operands`.
pub(super) fn replace_by_asm(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    op: Ptr<Operation>,
    operands: Vec<Value>,
    (template, constraints): (&str, &str),
) {
    let result = VoidType::get(ctx).into();
    let asm = InlineAsmOp::new(ctx, result, operands, template, constraints, true);
    rewriter.insert_op(ctx, &asm);
    rewriter.erase_operation(ctx, op);
}

/// Returns the address of `pointer` in address space `space`.
pub(super) fn address(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    pointer: Value,
    space: u32,
) -> Value {
    let pointer = in_space(ctx, rewriter, pointer, space);
    let integer = i64_ty(ctx);
    let address = PtrToIntOp::new(ctx, pointer, integer);
    rewriter.insert_op(ctx, &address);
    address.get_result(ctx)
}

/// Declares a function that moves the numbers in `source`, in shared memory, to `destination`, in a way that `$instruction` names.
macro_rules! bulk_move {
    ($(#[$doc:meta])* $function:ident, $op:ident, $name:literal, $instruction:literal) => {
        #[cube_op(name = $name)]
        #[result_ty(none)]
        #[op_traits(CanMaterialize, HasSideEffects)]
        struct $op {
            source: Value,
            destination: Value,
            bytes: Value,
        }

        #[op_interface_impl]
        impl MemoryEffectsOp for $op {
            fn memory_effects(&self, ctx: &Context) -> Vec<MemoryEffect> {
                vec![MemoryEffect::Read(self.source(ctx)), MemoryEffect::Write(self.destination(ctx))]
            }
        }

        #[op_interface_impl]
        impl ToLLVMDialect for $op {
            fn rewrite(
                &self,
                ctx: &mut Context,
                rewriter: &mut DialectConversionRewriter,
                _operands_info: &OperandsInfo,
            ) -> Result<()> {
                let (source, destination, bytes) = (self.source(ctx), self.destination(ctx), self.bytes(ctx));
                let source = address(ctx, rewriter, source, SHARED);
                let destination = address(ctx, rewriter, destination, GLOBAL);
                let operands = vec![destination, source, bytes];
                let asm = (concat!($instruction, " [$0], [$1], $2;"), "l,l,r,~{memory}");
                replace_by_asm(ctx, rewriter, self.get_operation(), operands, asm);
                Ok(())
            }
        }

        $(#[$doc])*
        #[cube]
        pub(crate) fn $function<V: CubePrimitive, W: CubePrimitive>(source: &[V], destination: &mut [W], bytes: u32) {
            intrinsic!(|scope| {
                #[expect(unsafe_code, reason = "the move has read its source before the source is written again")]
                let source = unsafe { *source.__expand_as_ptr_method(scope) }.value(scope);
                #[expect(unsafe_code, reason = "the lock keeps others from the sum until the move has ended")]
                let destination = unsafe { *destination.__expand_as_ptr_method(scope) }.value(scope);
                let bytes = bytes.read_value(scope);
                let op = $op::new(scope.ctx_mut(), source, destination, bytes);
                scope.register(&op);
            })
        }
    };
}

bulk_move!(
    /// Starts to add the f32 numbers in the first `bytes` bytes of `source` to the numbers of `destination`. Both begin at a
    /// multiple of 16 bytes.
    add_bulk,
    AddBulkOp,
    "kiln.add_bulk",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
);
bulk_move!(
    /// Starts to copy the first `bytes` bytes of `source` to `destination`. Both begin at a multiple of 16 bytes.
    store_bulk,
    StoreBulkOp,
    "kiln.store_bulk",
    "cp.async.bulk.global.shared::cta.bulk_group"
);

#[cube_op(name = "kiln.await_turn")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct AwaitTurnOp {
    lock: Value,
    turn: Value,
}

#[op_interface_impl]
impl ToLLVMDialect for AwaitTurnOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let (lock, turn) = (self.lock(ctx), self.turn(ctx));
        let lock = address(ctx, rewriter, lock, GLOBAL);
        let template = "{\n\t.reg .pred mine;\n\t.reg .b32 added;\nWAIT:\n\tld.acquire.gpu.global.b32 added, [$0];\n\t\
                        setp.eq.u32 mine, added, $1;\n\t@!mine bra WAIT;\n\t}";
        replace_by_asm(ctx, rewriter, self.get_operation(), vec![lock, turn], (template, "l,r,~{memory}"));
        Ok(())
    }
}

#[cube_op(name = "kiln.pass_turn")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct PassTurnOp {
    lock: Value,
}

#[op_interface_impl]
impl ToLLVMDialect for PassTurnOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let lock = self.lock(ctx);
        let lock = address(ctx, rewriter, lock, GLOBAL);
        let asm = ("red.release.gpu.global.add.u32 [$0], 1;", "l,~{memory}");
        replace_by_asm(ctx, rewriter, self.get_operation(), vec![lock], asm);
        Ok(())
    }
}

order!(
    /// Ends this thread's group of moves.
    commit,
    CommitBulkOp,
    "kiln.commit_bulk",
    "llvm.nvvm.cp.async.bulk.commit.group"
);
order!(
    /// Waits until all moves of this thread's groups have read shared memory.
    settle_reads,
    SettleReadsOp,
    "kiln.settle_reads",
    "llvm.nvvm.cp.async.bulk.wait.group.read",
    0
);
order!(
    /// Waits until all moves of this thread's groups have been written.
    settle,
    SettleBulkOp,
    "kiln.settle_bulk",
    "llvm.nvvm.cp.async.bulk.wait.group",
    0
);

/// Waits until `turn` parts have been added to the sum of `lock`, its first element, and sees what their blocks wrote.
#[cube]
pub(crate) fn await_turn<L: CubePrimitive>(lock: &[L], turn: u32) {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "the instruction reads the number while others change it")]
        let lock = unsafe { *lock.__expand_as_ptr_method(scope) }.value(scope);
        let turn = turn.read_value(scope);
        let op = AwaitTurnOp::new(scope.ctx_mut(), lock, turn);
        scope.register(&op);
    })
}

/// Counts a part that has been added to the sum of `lock`, its first element. Who waits for the count sees what the thread has written.
#[cube]
pub(crate) fn pass_turn<L: CubePrimitive>(lock: &[L]) {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "the instruction changes the number in one piece")]
        let lock = unsafe { *lock.__expand_as_ptr_method(scope) }.value(scope);
        let op = PassTurnOp::new(scope.ctx_mut(), lock);
        scope.register(&op);
    })
}
