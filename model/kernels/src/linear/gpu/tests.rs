//! The kernels, compiled without a device.

use std::sync::OnceLock;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;

use super::shared::config::Epilogue;
use super::shared::split_k_sum::{SUM_THREADS, SumConfig, SumSizeCompilationArg, gemm_add_slices};
use crate::gpu::offline::{Compiled, buffer, settings};

pub(crate) fn offline_kernels() -> &'static [Compiled] {
    static KERNELS: OnceLock<Vec<Compiled>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let sums = [
            ("accumulate", true, false, Epilogue::Store),
            ("bias-relu", false, true, Epilogue::Relu),
            ("bias-residual", false, true, Epilogue::AddResidual),
        ];
        let products = super::hopper::tests::offline_kernels();
        products
            .into_iter()
            .chain(sums.map(sum_of_slices))
            .chain(super::few_rows::tests::offline_kernels())
            .chain(super::ampere::tests::offline_kernels())
            .chain(super::tf32::tests::offline_kernels())
            .chain(super::fp8::tests::offline_kernels())
            .collect()
    })
}

fn sum_of_slices((case, accumulates, bias, epilogue): (&str, bool, bool, Epilogue)) -> Compiled {
    let config = SumConfig { tile_n: 256, group_m: 16, accumulates, bias, epilogue };
    let size = SumSizeCompilationArg {
        m: (),
        n: (),
        slices: (),
        tail_blocks: (),
        tail_slices: (),
        row_quads: (),
        residual_row_quads: (),
    };
    let (launch, properties, target) = settings(SUM_THREADS);
    let dtype = dtype_to_storage_type(DType::BF16);
    #[rustfmt::skip]
    let kernel = gemm_add_slices::GemmAddSlices::new(
        launch, properties, target, buffer(), buffer(), buffer(), buffer(), size, config, dtype,
    );
    Compiled::new(format!("linear/split-k-sum/{case}-bf16"), kernel)
}

/// Each product is to use TMA and the tensor cores.
#[test]
fn kernels_compile_without_a_device() {
    for Compiled { label, ptx, .. } in offline_kernels() {
        if ["ampere", "tf32", "fp8", "few-rows"].iter().any(|other| label.starts_with(&format!("linear/{other}"))) {
            continue;
        }
        if label.starts_with("linear/split-k-sum") {
            assert!(ptx.is_some(), "{label}");
            continue;
        }
        let Some(code) = ptx else { return };
        let operands = if label.ends_with("-bf16") { "f32.bf16.bf16" } else { "f32.f16.f16" };
        assert!(code.contains(operands), "{label}");
        assert!(code.contains("cp.async.bulk.tensor"), "{label}");
        // With a call in the kernel, the driver runs one product at a time.
        assert!(!["div.rn", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}
