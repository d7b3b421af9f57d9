//! The kernel, compiled without a device.

use std::sync::Arc;

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use cubecl::__private::Runtime;
use cubecl::cuda::CudaRuntime;

use super::super::arguments::{GemmSizeCompilationArg, SplitKSizeCompilationArg};
use super::super::config::{Epilogue, GemmConfig, Output, Sums};
use super::{MatricesCompilationArg, PitchesCompilationArg, ResultsCompilationArg, SizesCompilationArg, gemm, threads};
use crate::activation::Activation;
use crate::gpu::offline::{Compiled, buffer, settings};
use crate::linear::Layout;

/// Every layout with wide tiles, and every epilogue that differs with narrow ones.
fn configs() -> Vec<(String, GemmConfig)> {
    let rounded = |epilogue| Output::Rounded { bias: true, epilogue };
    let activation = |activation, keeps_input| rounded(Epilogue::Activation { activation, keeps_input });
    let outputs = [
        ("bias", rounded(Epilogue::Store)),
        ("bias-residual", rounded(Epilogue::AddResidual)),
        ("bias-gelu-tanh-kept", activation(Activation::GeluTanh, true)),
        ("f32-split-k", Output::Sums(Sums::SplitK)),
        ("f32-accumulate", Output::Sums(Sums::Accumulate)),
    ];
    let mut configs = Vec::new();
    for (name, layout) in [("nn", Layout::NN), ("nt", Layout::NT), ("tn", Layout::TN)] {
        configs.push((format!("{name}-bias-wide"), GemmConfig::ampere(layout, outputs[0].1, 256, 16)));
        configs.push((format!("{name}-f32-split-k-wide"), GemmConfig::ampere(layout, outputs[3].1, 256, 16)));
    }
    configs
        .extend(outputs.map(|(case, output)| (format!("nn-{case}"), GemmConfig::ampere(Layout::NN, output, 128, 16))));
    configs
}

pub(in crate::linear::gpu) fn offline_kernels() -> Vec<Compiled> {
    let mut compiled: Vec<_> =
        configs().iter().map(|(case, config)| product(case, *config, ("bf16", DType::BF16))).collect();
    let (case, config) = &configs()[0];
    compiled.push(product(case, *config, ("f16", DType::F16)));
    compiled
}

fn product(case: &str, config: GemmConfig, (name, dtype): (&str, DType)) -> Compiled {
    let (launch, properties, _) = settings(threads(&config));
    // The instruction asks the target for its register layout.
    let target = Arc::new(CudaRuntime::target_properties());
    let kernel = gemm::Gemm::new(
        launch,
        properties,
        target,
        MatricesCompilationArg { a: buffer(), b: buffer(), bias: buffer() },
        ResultsCompilationArg { c: buffer(), auxiliary: buffer(), sums: buffer() },
        SizesCompilationArg {
            product: GemmSizeCompilationArg { m: (), n: (), pitch: (), k_tiles: () },
            pitches: PitchesCompilationArg { k: (), a: (), b: (), c: (), auxiliary: () },
        },
        SplitKSizeCompilationArg { slices: (), slice_len: (), tail_slices: () },
        config,
        dtype_to_storage_type(dtype),
    );
    Compiled::for_ampere(format!("linear/ampere/{case}-{name}"), kernel)
}

#[test]
fn ampere_kernels_compile_without_a_device() {
    for Compiled { label, ptx, .. } in offline_kernels() {
        let code = ptx.expect("no function of libdevice");
        for instruction in ["mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg.shared.global"] {
            assert!(code.contains(instruction), "{label}: {instruction}");
        }
        assert!(!["div.rn", "rcp.rn", "call"].iter().any(|slow| code.contains(slow)), "{label}");
    }
}
