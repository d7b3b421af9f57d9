use std::sync::OnceLock;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;

use super::UNITS;
use super::backward::{
    BackwardConfig, InputsCompilationArg as BackwardInputs, OutputsCompilationArg as BackwardOutputs, norm_backward,
};
use super::forward::{
    Addend, ForwardConfig, InputsCompilationArg as ForwardInputs, OutputsCompilationArg as ForwardOutputs, norm_forward,
};
use super::parameters::{REDUCE_UNITS, reduce_partial};
use super::row::{Normalization, Row};
use crate::dropout::kernel::DropArgsCompilationArg;
use crate::gpu::offline::{Compiled, buffer, settings};

/// The kernels that `ptx.lock` records: rows of one, two and three vectors per thread, and rows that take a whole
/// block; streamed through shared memory and not.
pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let (b, dtype) = (buffer, dtype_to_storage_type(DType::BF16));
        let drop = || DropArgsCompilationArg { site: (), limit: (), scale: () };
        let rows = [(32, false, true), (64, true, true), (96, false, true), (256, true, true), (64, true, false)];
        let normalization = Normalization::Layer;
        let mut kernels = Vec::new();
        for (vectors, is_dropped, is_streamed) in rows {
            let row = Row { vectors };
            let dropout = if is_dropped { "-dropout" } else { "" };
            let case = format!("{vectors}-vectors{dropout}{}", if is_streamed { "-streamed" } else { "" });

            let addend = Addend::Branch { has_bias: true, is_dropped };
            let config = ForwardConfig { row, normalization, addend, early: false };
            let inputs = ForwardInputs { x: b(), branch: b(), bias: b(), state: b(), gamma: b(), beta: b() };
            let outputs = ForwardOutputs { sum: b(), y: b(), statistics: b() };
            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let there = norm_forward::NormForward::new(
                launch, properties, target, inputs, outputs, (), (), drop(), 8, config, dtype,
            );
            kernels.push(Compiled::new(format!("norm/forward/{case}"), there));

            let config =
                BackwardConfig { row, normalization, has_residual: true, has_bias: true, is_dropped, is_streamed };
            let inputs = BackwardInputs { x: b(), statistics: b(), gamma: b(), dy: b(), dsum: b(), state: b() };
            let outputs = BackwardOutputs { dx: b(), dbranch: b(), partial: b() };
            let (launch, properties, target) = settings(UNITS);
            #[rustfmt::skip]
            let back = norm_backward::NormBackward::new(
                launch, properties, target, inputs, outputs, (), drop(), 8, config, dtype,
            );
            kernels.push(Compiled::new(format!("norm/backward/{case}"), back));
        }

        let addend = Addend::Branch { has_bias: true, is_dropped: false };
        let config = ForwardConfig { row: Row { vectors: 96 }, normalization, addend, early: true };
        let inputs = ForwardInputs { x: b(), branch: b(), bias: b(), state: b(), gamma: b(), beta: b() };
        let outputs = ForwardOutputs { sum: b(), y: b(), statistics: b() };
        let (launch, properties, target) = settings(UNITS);
        #[rustfmt::skip]
        let early = norm_forward::NormForward::new(
            launch, properties, target, inputs, outputs, (), (), drop(), 8, config, dtype,
        );
        kernels.push(Compiled::new("norm/forward/early", early));

        let (launch, properties, target) = settings(REDUCE_UNITS);
        let sums = reduce_partial::ReducePartial::new(launch, properties, target, b(), b(), b(), b(), (), (), 3, dtype);
        kernels.push(Compiled::new("norm/backward/parameters", sums));
        kernels
    })
}

#[test]
fn kernels_compile_without_a_device() {
    for kernel in offline_kernels() {
        assert!(kernel.ptx.is_some(), "{}", kernel.label);
    }
}
