use std::sync::OnceLock;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;

use super::prepare::{Overflow, PolicyCompilationArg, prepare};
use super::step::{FactorsCompilationArg, RandomCompilationArg, StateCompilationArg, step, step_rounded};
use super::{PREPARE_UNITS, UNITS};
use crate::gpu::offline::{Compiled, buffer, settings};

/// The kernels that `ptx.lock` records.
pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let b = buffer;
        let dtypes = [DType::BF16, DType::F32].map(dtype_to_storage_type);
        let mut kernels = Vec::new();

        for (name, overflow) in [("plain", Overflow::Skips), ("stops", Overflow::Stops), ("scaled", Overflow::Rescales)]
        {
            let (launch, properties, target) = settings(PREPARE_UNITS);
            #[rustfmt::skip]
            let prepare = prepare::Prepare::new(
                launch, properties, target, b(), b(), b(), b(), b(), b(), policy(), overflow,
            );
            kernels.push(Compiled::new(format!("adamw/prepare/{name}"), prepare));
        }
        for (name, writes_weights) in [("weights-bf16", true), ("moments", false)] {
            let (launch, properties, target) = settings(UNITS);
            let state = StateCompilationArg { master: b(), m: b(), v: b() };
            #[rustfmt::skip]
            let step = step::Step::new(
                launch, properties, target, state, b(), b(), b(), factors(), 4, writes_weights, dtypes,
            );
            kernels.push(Compiled::new(format!("adamw/step/{name}"), step));
        }

        for gradient in [DType::BF16, DType::F32] {
            let (launch, properties, target) = settings(UNITS);
            let state = StateCompilationArg { master: b(), m: b(), v: b() };
            let random = RandomCompilationArg { first_octet: (), seed_low: (), seed_high: () };
            let dtypes = [DType::BF16, gradient].map(dtype_to_storage_type);
            #[rustfmt::skip]
            let step = step_rounded::StepRounded::new(
                launch, properties, target, state, b(), b(), factors(), random, 8, dtypes,
            );
            kernels.push(Compiled::new(format!("adamw/step/rounded-{gradient:?}-gradient").to_lowercase(), step));
        }
        kernels
    })
}

#[test]
fn kernels_compile_without_a_device() {
    for kernel in offline_kernels() {
        assert!(kernel.ptx.is_some(), "{}", kernel.label);
    }
}

fn policy() -> PolicyCompilationArg {
    PolicyCompilationArg {
        n: (),
        rows: (),
        max_norm: (),
        unit: (),
        growth_factor: (),
        growth_interval: (),
        backoff_factor: (),
        floor: (),
    }
}

fn factors() -> FactorsCompilationArg {
    FactorsCompilationArg { vectors: (), decayed: (), beta1: (), beta2: (), rest1: (), rest2: (), eps: () }
}
