//! How many blocks of a kernel a multiprocessor is to hold, which bounds the registers of a thread. This is `.minnctapersm` in
//! PTX, the second number of CUDA's `__launch_bounds__`.
//!
//! Without a bound, the assembler takes as many registers as its schedule can use. If that is a few more than the block's share of
//! the 65,536, one block less fits. A bound that is too tight causes spills, and serializes warpgroup products: see `ptxas -c -v`.

use cubecl::ir::pliron as _;
use cubecl::prelude::*;
use cubecl_ir::attributes::IndexAttr;
use cubecl_ir::prelude::*;
use cubecl_ir::{CanMaterialize, HasSideEffects};
use pliron_llvm::ToLLVMDialect;
use pliron_llvm::llvm_attrs::{LlvmAttrValue, LlvmAttributesAttr};
use pliron_llvm::ops::FuncOp;

/// An operation that is lowered to an attribute of the enclosing function.
#[cube_op(name = "kiln.cubes_at_once")]
#[result_ty(none)]
#[op_traits(CanMaterialize, HasSideEffects)]
struct CubesAtOnceOp {
    cubes: IndexAttr,
}

#[op_interface_impl]
impl ToLLVMDialect for CubesAtOnceOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let mut around = self.get_operation();
        let kernel = loop {
            around = around.deref(ctx).get_parent_op(ctx).expect("an operation of a kernel");
            if let Some(function) = Operation::get_op::<FuncOp>(around, ctx) {
                break function;
            }
        };
        let mut attributes = LlvmAttributesAttr::new();
        attributes.set("nvvm.minctasm", LlvmAttrValue::Str(self.cubes(ctx).0.to_string()));
        kernel.set_attr_llvm_func_attrs(ctx, attributes);
        rewriter.erase_operation(ctx, self.get_operation());
        Ok(())
    }
}

/// Bounds the kernel's registers so that `cubes` of its blocks fit on a multiprocessor.
#[cube]
pub(crate) fn cubes_at_once(#[comptime] cubes: usize) {
    intrinsic!(|scope| {
        scope.register(&CubesAtOnceOp::new(scope.ctx_mut(), cubes));
    })
}
