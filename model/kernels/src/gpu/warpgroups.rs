//! Warpgroups of a block with different roles: they move registers to each other, and take turns.
//!
//! A kernel that moves registers is launched as one of [`crate::device_queue::programs`]: CubeCL's own way ignores the moves.

use cubecl::ir::pliron as _;
use cubecl::prelude::*;
use cubecl_ir::prelude::*;
use cubecl_ir::{CanMaterialize, HasSideEffects};
use cubecl_llvm::shared::intrinsic::call_void;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;

use super::instruction::{constant, order};

order!(
    /// Leaves 24 registers to each thread of the warpgroup.
    keep_24_registers,
    Keep24RegistersOp,
    "kiln.keep_24_registers",
    "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32",
    24
);
order!(
    /// Leaves 32 registers to each thread of the warpgroup.
    keep_32_registers,
    Keep32RegistersOp,
    "kiln.keep_32_registers",
    "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32",
    32
);
order!(
    /// Gives 160 registers to each thread of the warpgroup, once they have been left by others.
    take_160_registers,
    Take160RegistersOp,
    "kiln.take_160_registers",
    "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32",
    160
);
order!(
    /// Gives 240 registers to each thread of the warpgroup, once they have been left by others.
    take_240_registers,
    Take240RegistersOp,
    "kiln.take_240_registers",
    "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32",
    240
);

/// Declares a function of a barrier of the block, from 1 to 15, that two warpgroups use.
macro_rules! of_two {
    ($(#[$doc:meta])* $function:ident, $op:ident, $name:literal, $intrinsic:literal) => {
        #[cube_op(name = $name)]
        #[result_ty(none)]
        #[op_traits(CanMaterialize, HasSideEffects)]
        struct $op {
            barrier: Value,
        }

        #[op_interface_impl]
        impl ToLLVMDialect for $op {
            fn rewrite(
                &self,
                ctx: &mut Context,
                rewriter: &mut DialectConversionRewriter,
                _operands_info: &OperandsInfo,
            ) -> Result<()> {
                let barrier = self.barrier(ctx);
                let units = constant(ctx, rewriter, 256);
                call_void(ctx, rewriter, $intrinsic, vec![barrier, units]);
                rewriter.erase_operation(ctx, self.get_operation());
                Ok(())
            }
        }

        $(#[$doc])*
        #[cube]
        pub(crate) fn $function(barrier: u32) {
            intrinsic!(|scope| {
                let barrier = barrier.read_value(scope);
                let op = $op::new(scope.ctx_mut(), barrier);
                scope.register(&op);
            })
        }
    };
}

of_two!(
    /// Waits until another warpgroup has passed `barrier` on.
    await_other,
    AwaitOtherOp,
    "kiln.await_other",
    "llvm.nvvm.barrier.cta.sync.aligned.count"
);
of_two!(
    /// Passes `barrier` on to the warpgroup that waits or will wait for it, and does not wait.
    pass_to_other,
    PassToOtherOp,
    "kiln.pass_to_other",
    "llvm.nvvm.barrier.cta.arrive.aligned.count"
);
