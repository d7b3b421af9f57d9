//! Instructions of NVIDIA GPUs that CubeCL's front end does not offer, added to its compiler as operations.

use cubecl::ir::pliron as _;
use cubecl::prelude::*;
use cubecl_ir::interfaces::TriviallyUnrollable;
use cubecl_ir::prelude::*;
use cubecl_ir::{CanMaterialize, PropagatesUniformity, Pure};
use cubecl_llvm::shared::intrinsic::i32_const_op;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;
use cubecl_llvm::shared::to_llvm::ty::cube_type_to_llvm;
use pliron_llvm::ops::CallIntrinsicOp;
use pliron_llvm::types::FuncType;

/// Replaces `op`, which has one result, by a call of `intrinsic` with `operands`.
fn replace_by_call(
    ctx: &mut Context,
    rewriter: &mut DialectConversionRewriter,
    op: &impl OneResultInterface,
    operands: Vec<Value>,
    intrinsic: &str,
) {
    let types = operands.iter().map(|operand| operand.get_type(ctx)).collect();
    let result = cube_type_to_llvm(ctx, op.get_result(ctx).get_type(ctx));
    let signature = FuncType::get(ctx, result, types, false);
    let call = CallIntrinsicOp::new(ctx, intrinsic.into(), signature, operands);
    rewriter.insert_op(ctx, &call);
    rewriter.replace_operation_with_values(ctx, op.get_operation(), vec![call.get_result(ctx)]);
}

/// Declares a function of one number that is one instruction: an operation that is lowered to a call of an NVPTX intrinsic.
macro_rules! unary {
    ($(#[$doc:meta])* $function:ident, $op:ident, $name:literal, $intrinsic:literal) => {
        #[cube_op(name = $name)]
        #[result_ty(same_as = input)]
        #[op_interfaces(SameOperandsType, SameOperandsAndResultType, TriviallyUnrollable)]
        #[op_traits(CanMaterialize, Pure, PropagatesUniformity)]
        struct $op {
            input: Value,
        }

        #[op_interface_impl]
        impl ToLLVMDialect for $op {
            fn rewrite(
                &self,
                ctx: &mut Context,
                rewriter: &mut DialectConversionRewriter,
                _operands_info: &OperandsInfo,
            ) -> Result<()> {
                let input = self.input(ctx);
                replace_by_call(ctx, rewriter, self, vec![input], $intrinsic);
                Ok(())
            }
        }

        $(#[$doc])*
        #[cube]
        pub(crate) fn $function(x: f32) -> f32 {
            intrinsic!(|scope| {
                let x = x.read_value(scope);
                let op = $op::new(scope.ctx_mut(), x);
                scope.register_with_result(&op).into()
            })
        }
    };
}

unary!(
    /// Returns `2^x` in one instruction, `ex2.approx.ftz.f32`, with a relative error of 2^-22; subnormal results are 0. `f32::exp`
    /// is the same instruction within eight others.
    exp2_approx,
    Exp2ApproxOp,
    "kiln.exp2_approx",
    "llvm.nvvm.ex2.approx.ftz.f32"
);
unary!(
    /// Returns `1 / x` in one instruction, `rcp.approx.ftz.f32`, with an error of at most one unit in the last place. A division is
    /// the same instruction within ten others.
    rcp_approx,
    RcpApproxOp,
    "kiln.rcp_approx",
    "llvm.nvvm.rcp.approx.ftz.f"
);
unary!(
    /// Returns the binary logarithm in one instruction, `lg2.approx.ftz.f32`. Its error is 2^-22: absolute between 1/2 and 2,
    /// relative elsewhere.
    log2_approx,
    Log2ApproxOp,
    "kiln.log2_approx",
    "llvm.nvvm.lg2.approx.ftz.f"
);

/// Declares a function that rounds two numbers to FP8, beyond the largest one to that one, and returns them in 16 bits.
macro_rules! fp8_pair {
    ($(#[$doc:meta])* $function:ident, $op:ident, $name:literal, $intrinsic:literal) => {
        #[cube_op(name = $name)]
        #[result_ty(argument)]
        #[op_traits(CanMaterialize, Pure, PropagatesUniformity)]
        struct $op {
            upper: Value,
            lower: Value,
        }

        #[op_interface_impl]
        impl ToLLVMDialect for $op {
            fn rewrite(
                &self,
                ctx: &mut Context,
                rewriter: &mut DialectConversionRewriter,
                _operands_info: &OperandsInfo,
            ) -> Result<()> {
                let operands = vec![self.upper(ctx), self.lower(ctx)];
                replace_by_call(ctx, rewriter, self, operands, $intrinsic);
                Ok(())
            }
        }

        $(#[$doc])*
        #[cube]
        pub(crate) fn $function(upper: f32, lower: f32) -> u16 {
            intrinsic!(|scope| {
                let (upper, lower) = (upper.read_value(scope), lower.read_value(scope));
                let two = u16::__expand_as_type(scope);
                let op = $op::new(scope.ctx_mut(), two, upper, lower);
                scope.register_with_result(&op).into()
            })
        }
    };
}

fp8_pair!(
    /// Returns two numbers in E4M3, `cvt.rn.satfinite.e4m3x2.f32`.
    pair_of_e4m3,
    PairOfE4m3Op,
    "kiln.pair_of_e4m3",
    "llvm.nvvm.ff.to.e4m3x2.rn"
);
fp8_pair!(
    /// Returns two numbers in E5M2, `cvt.rn.satfinite.e5m2x2.f32`.
    pair_of_e5m2,
    PairOfE5m2Op,
    "kiln.pair_of_e5m2",
    "llvm.nvvm.ff.to.e5m2x2.rn"
);

/// Declares a function without arguments that is one instruction with effects: a call of an NVPTX intrinsic with constants.
macro_rules! order {
    ($(#[$doc:meta])* $function:ident, $op:ident, $name:literal, $intrinsic:literal $(, $constant:literal)?) => {
        #[cube_op(name = $name)]
        #[result_ty(none)]
        #[op_traits(CanMaterialize, HasSideEffects)]
        struct $op {}

        #[op_interface_impl]
        impl ToLLVMDialect for $op {
            fn rewrite(
                &self,
                ctx: &mut Context,
                rewriter: &mut DialectConversionRewriter,
                _operands_info: &OperandsInfo,
            ) -> Result<()> {
                let constants: &[i32] = &[$($constant)?];
                let mut operand = |&number: &i32| super::instruction::constant(ctx, rewriter, number);
                let operands = constants.iter().map(&mut operand).collect();
                call_void(ctx, rewriter, $intrinsic, operands);
                rewriter.erase_operation(ctx, self.get_operation());
                Ok(())
            }
        }

        $(#[$doc])*
        #[cube]
        pub(crate) fn $function() {
            intrinsic!(|scope| {
                let op = $op::new(scope.ctx_mut());
                scope.register(&op);
            })
        }
    };
}
pub(super) use order;

/// Returns `number` as an operand.
pub(super) fn constant(ctx: &mut Context, rewriter: &mut DialectConversionRewriter, number: i32) -> Value {
    let number = i32_const_op(ctx, number);
    rewriter.insert_op(ctx, &number);
    number.get_result(ctx)
}

/// Returns `e^x`, element by element.
#[cube]
pub(crate) fn exp<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    exp2::<N>(x * Vector::new(core::f32::consts::LOG2_E))
}

/// Returns `2^x`, element by element.
#[cube]
fn exp2<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::zeroed();
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        y.insert(i, exp2_approx(x.extract(i)));
    }
    y
}

/// Returns `1 / x`, element by element.
#[cube]
pub(crate) fn reciprocal<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::zeroed();
    let width = N::value().comptime();
    #[unroll]
    for i in 0..width {
        y.insert(i, rcp_approx(x.extract(i)));
    }
    y
}

/// Returns `1 / (1 + e^-x)`, element by element.
#[cube]
pub(crate) fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    sigmoid_base2::<N>(x * Vector::new(core::f32::consts::LOG2_E))
}

/// Returns `1 / (1 + 2^-x)`, element by element.
#[cube]
pub(crate) fn sigmoid_base2<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    reciprocal::<N>(Vector::<f32, N>::new(1.0f32) + exp2::<N>(-x))
}
