//! Every public operator by plain Burn operations, against the kernels of the CPU: in values and in gradients. On the CPU the references
//! run everywhere; a device of wgpu runs what a backend without kernels runs.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::capture::{overwrite, overwrite_floats, overwrite_rows};
use crate::optim::{
    AdamWHyper, AdamWState, Coefficients, Counters, Place, Progress, StepPolicy, adamw_step, gather, prepare, view,
};
use crate::testing::{distance, host, values, wgpu};
use crate::*;

/// What an operator computes: values first, then gradients.
type Found = Vec<(&'static str, Vec<f32>)>;

fn fixed<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    let n = shape.iter().product();
    Tensor::from_data(TensorData::new(values(n, seed), shape), (device, DType::F32))
}

fn leaf<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    fixed(shape, seed, device).require_grad()
}

fn ints<const D: usize>(numbers: &[i32], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), shape), (device, DType::I32))
}

fn numbers<const D: usize>(tensor: Tensor<D, Int>) -> Vec<f32> {
    let data = tensor.into_data().convert::<i64>();
    data.try_into_vec::<i64>().expect("integers").into_iter().map(|x| x as f32).collect()
}

fn stream(device: &Device) -> DropoutStream {
    DropoutStream::new(7, 3, &device.clone().inner())
}

/// Returns `y` and the gradients of `leaves` for a weighted sum of `y`.
fn with_gradients<const D: usize>(
    y: Tensor<D>,
    two: &[(&'static str, &Tensor<2>)],
    one: &[(&'static str, &Tensor<1>)],
) -> Found {
    let weights = fixed(y.dims(), 99, &y.device());
    let gradients = (y.clone() * weights).sum().backward();
    let mut found = vec![("y", host(y.inner()))];
    found.extend(two.iter().map(|(name, leaf)| (*name, host(leaf.grad(&gradients).expect(name)))));
    found.extend(one.iter().map(|(name, leaf)| (*name, host(leaf.grad(&gradients).expect(name)))));
    found
}

fn products(device: &Device) -> Found {
    let (x, w, b) = (leaf([9, 12], 1, device), leaf([12, 7], 2, device), leaf([7], 3, device));
    let random = stream(device);
    let y = linear(x.clone(), w.clone(), Some(b.clone()));
    let activated =
        Activation::ALL.map(|by| linear_activated(x.clone(), w.clone(), Some(b.clone()), by, Some((0.3, &random))));
    let residual = leaf([9, 7], 4, device);
    let sum = linear_residual(x.clone(), w.clone(), Some(b.clone()), residual.clone());
    let transposed = linear_transposed(x.clone(), w.clone().transpose(), Some(b.clone()));
    let all = Tensor::cat([vec![y, sum, transposed], activated.to_vec()].concat(), 0);
    with_gradients(all, &[("dx", &x), ("dw", &w), ("dresidual", &residual)], &[("db", &b)])
}

fn gradients_of_weights(device: &Device) -> Found {
    let device = &device.clone().inner();
    let [x, dy, sum] = [([9, 12], 1), ([9, 7], 2), ([12, 7], 3)].map(|(shape, seed)| fixed(shape, seed, device));
    vec![
        ("gradient", host(linear_weight_gradient(x.clone(), dy.clone()))),
        ("accumulated", host(linear_weight_gradient_accumulate(x, dy, sum))),
    ]
}

fn norms(device: &Device) -> Found {
    let (x, branch, w) = (leaf([6, 16], 1, device), leaf([6, 10], 2, device), leaf([10, 16], 3, device));
    let (gamma, beta, bias) = (leaf([16], 4, device), leaf([16], 5, device), leaf([16], 6, device));
    let random = stream(device);
    let weights = |beta: Option<Tensor<1>>| NormWeights { gamma: gamma.clone(), beta, eps: 1e-5 };
    let of_branch = Branch { x: branch.clone(), weight: Some(w.clone()), bias: Some(bias.clone()) };
    let (sum, normed) = add_norm(x.clone(), Some(of_branch), Some((0.2, &random)), weights(Some(beta.clone())));
    let rms = rms_norm(x.clone(), gamma.clone(), 1e-5);
    let layer = layer_norm(x.clone(), gamma.clone(), beta.clone(), 1e-5);
    let (_, plain) = add_norm(sum.clone(), Some(x.clone().into()), None, weights(None));
    let all = Tensor::cat(vec![sum, normed, rms, layer, plain], 0);
    with_gradients(
        all,
        &[("dx", &x), ("dbranch", &branch), ("dw", &w)],
        &[("dgamma", &gamma), ("dbeta", &beta), ("dbias", &bias)],
    )
}

/// A norm whose sum is known: the values of the branch do not count, its gradient does.
fn norms_again(device: &Device) -> Found {
    let (sum, branch, bias) = (leaf([6, 16], 1, device), leaf([6, 16], 2, device), leaf([16], 3, device));
    let (gamma, beta, random) = (leaf([16], 4, device), leaf([16], 5, device), stream(device));
    let norm = NormWeights { gamma: gamma.clone(), beta: Some(beta.clone()), eps: 1e-5 };
    let (again, normed) = add_norm_again(sum.clone(), branch.clone(), Some(bias.clone()), Some((0.2, &random)), norm);
    let all = Tensor::cat(vec![again, normed], 0);
    with_gradients(
        all,
        &[("dsum", &sum), ("dbranch", &branch)],
        &[("dgamma", &gamma), ("dbeta", &beta), ("dbias", &bias)],
    )
}

fn norms_of_heads(device: &Device) -> Found {
    let (qkv, query, key) = (leaf([5, 32], 1, device), leaf([8], 2, device), leaf([8], 3, device));
    let y = norm_heads(qkv.clone(), query.clone(), key.clone(), [2, 1], 1e-5);
    with_gradients(y, &[("dqkv", &qkv)], &[("dquery", &query), ("dkey", &key)])
}

fn rotations(device: &Device) -> Found {
    let qkv = leaf([6, 32], 1, device);
    let positions = ints(&[0, 1, 2, 0, 1, 700], [6], device);
    let y = rotary(qkv.clone(), positions, 3, 8, 10_000.0);
    with_gradients(y, &[("dqkv", &qkv)], &[])
}

fn gates(device: &Device) -> Found {
    let x = leaf([6, 20], 1, device);
    with_gradients(Tensor::cat(vec![swiglu(x.clone()), geglu(x.clone())], 0), &[("dx", &x)], &[])
}

fn embeddings(device: &Device) -> Found {
    let (table, places, random) = (leaf([11, 16], 1, device), leaf([4, 16], 2, device), stream(device));
    let ids = ints(&[3, 3, 0, 10, 5, 3, 9, 1], [8], device);
    let y = embed(ids.clone(), table.clone(), 4.0, Some(places.clone()), Some((0.25, &random)));
    let all = Tensor::cat(vec![y, embedding(ids, table.clone())], 0);
    with_gradients(all, &[("dtable", &table), ("dplaces", &places)], &[])
}

/// Causal and grouped with dropout and lengths; to another sequence; packed, with a window and a bound; relative positions; a bias.
fn attentions(device: &Device) -> Found {
    let (b, t, s, h, g, k) = (2, 5, 7, 4, 2, 8);
    let random = stream(device);
    let (qkv, query) = (leaf([b * t, (h + 2 * g) * k], 1, device), leaf([b * t, h * k], 2, device));
    let (key_value, relative) = (leaf([b * s, 2 * g * k], 3, device), leaf([h, 2 * t - 1], 4, device));
    let config = AttentionConfig {
        batch_size: b,
        n_heads: h,
        n_kv_heads: g,
        causal: true,
        window: None,
        scale: None,
        softcap: None,
    };

    let own = || Projected::SelfAttention { qkv: qkv.clone() };
    let cross = Projected::Cross { query: query.clone(), key_value: key_value.clone() };
    let open = AttentionConfig { causal: false, ..config };
    let lengths = |lengths: [i32; 2]| AttentionMask::key_lengths(ints(&lengths, [2], device));
    let packed =
        AttentionMask { documents: Some(ints(&[0, 0, 1, 1, 1, 0, 1, 1, 1, 2], [10], device)), ..Default::default() };
    let bounded = AttentionConfig { window: Some(2), softcap: Some(3.0), scale: Some(0.5), ..config };
    let near = AttentionMask { relative: Some(relative.clone()), ..Default::default() };
    let biased = AttentionMask { bias: Some(fixed([1, h, t, t], 5, device)), ..Default::default() };

    let all = vec![
        attention(own(), &lengths([5, 4]), Some((0.2, &random)), &config),
        attention(cross, &lengths([7, 3]), None, &open),
        attention(own(), &packed, None, &bounded),
        attention(own(), &near, None, &open),
        attention(own(), &biased, None, &config),
    ];
    with_gradients(
        Tensor::cat(all, 0),
        &[("dqkv", &qkv), ("dquery", &query), ("dkey_value", &key_value), ("drelative", &relative)],
        &[],
    )
}

fn losses(device: &Device) -> Found {
    let (x, w, logits) = (leaf([6, 8], 1, device), leaf([8, 13], 2, device), leaf([6, 13], 3, device));
    let labels = || ints(&[0, 12, -1, 5, 5, 3], [6], device);
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: -1 };
    let projection = |softcap| Projection { weight: w.clone(), transposed: false, bias: None, softcap };
    let whole = cross_entropy(logits.clone(), labels(), &config);
    let chunks = linear_cross_entropy(x.clone(), projection(None), labels(), &config, 4);
    let capped = linear_cross_entropy(x.clone(), projection(Some(2.0)), labels(), &config, 4);
    let rows = row_losses(x.clone(), projection(None), labels(), -1, 4);
    let nll = [whole.nll_of_rows(), chunks.nll_of_rows(), capped.nll_of_rows()].map(host).concat();
    let sums = [whole.nll_sum, chunks.nll_sum, capped.nll_sum].map(host).concat();
    let all = Tensor::cat(vec![whole.loss_sum, chunks.loss_sum, capped.loss_sum, rows], 0);
    let mut found = with_gradients(all, &[("dx", &x), ("dw", &w), ("dlogits", &logits)], &[]);
    found.extend([("losses of rows", nll), ("their sums", sums)]);
    found
}

fn dropped(device: &Device) -> Found {
    let (x, random) = (leaf([7, 33], 1, device), stream(device));
    let fork = random.fork();
    let y = Tensor::cat(vec![dropout(x.clone(), 0.4, &random), dropout(x.clone(), 0.1, &random)], 0);
    fork.take();
    random.join(&fork);
    let words = random_words(19, &random);
    let mut found = with_gradients(y, &[("dx", &x)], &[]);
    found.push(("words", numbers(words)));
    found
}

fn rows(device: &Device) -> Found {
    let device = &device.clone().inner();
    let x = fixed([5, 40], 1, device);
    let excluded = ColumnSet::new([0, 33], 40, device);
    let labels = ints(&[-1, 4, -1, 2, 2, -1, 0], [7], device);
    vec![
        ("sums", host(row_sums(x.clone()))),
        ("largest", numbers(row_argmax(x.clone()))),
        ("likeliest", host(likeliest(x, &excluded, 4))),
        ("labelled", numbers(labelled_rows(labels.clone(), -1, 5))),
        ("all labelled", numbers(labelled_rows(labels, -1, 7))),
    ]
}

fn steps_of_decoding(device: &Device) -> Found {
    let device = &device.clone().inner();
    let (query, key_value) = (fixed([3, 32], 1, device), fixed([4, 6, 2 * 2 * 8], 2, device));
    let config = StepAttentionConfig { n_heads: 4, n_kv_heads: 2, head_dim: 8, scale: None, divided: false };
    let (places, lengths) = (ints(&[2, 0, 3], [3, 1], device), ints(&[6, 1, 4], [3], device));
    let y = step_attention(query, key_value.clone(), places, lengths, &config);
    let written = overwrite_rows(key_value, fixed([4, 32], 3, device), ints(&[0, 5, 6, 2], [4], device));
    let floats = overwrite_floats(fixed([3], 4, device), fixed([3], 5, device));
    let integers = overwrite(ints(&[1, 2], [2], device), ints(&[3, 4], [2], device));
    let mut read = Readback::begin([floats.clone(), floats * 2.0]).finish().expect("the device answers");
    read.push(numbers(integers));
    vec![("y", host(y)), ("written rows", host(written)), ("read", read.concat())]
}

/// Three optimizer steps, the second of which is not taken, with a gradient in parts that is accumulated once.
fn optimizer(device: &Device) -> Found {
    let device = &device.clone().inner();
    let places = [Place { offset: 512, len: 300 }, Place { offset: 0, len: 256 }];
    let parts = |seed: u64| vec![fixed([3, 100], seed, device).into(), fixed([256], seed + 1, device).into()];
    let hyper = AdamWHyper { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, n_decayed: 512 };
    let coefficients = Coefficients::new(&hyper, |update| 0.01 * update as f64, 0, 8, device);
    let policy = StepPolicy { max_norm: 0.5, scaling: None, stops: false };
    let one = |value: f32| Tensor::<1>::from_data([value], (device, DType::F32));

    let mut state = AdamWState::new(fixed([1024], 1, device) * 1.0, DType::F32);
    let mut progress = Progress::new(Counters { updates: 0, loss_scale: 1.0, good_steps: 0 }, device);
    let mut found = Vec::new();
    for (step, loss) in [1.0, f32::NAN, 2.0].into_iter().enumerate() {
        let gradient = gather(parts(10 + step as u64), &places, 1024, DType::F32, device, None);
        let gradient = gather(parts(20 + step as u64), &places, 1024, DType::F32, device, Some(gradient));
        found.push(("squares", host(gradient.squares().clone())));
        found.push(("gradient", host(view(&gradient.values, 512, [3, 100]))));
        let numbers;
        (numbers, progress) = prepare(&gradient, one(3.0), one(loss), progress, &coefficients, &policy);
        found.push(("numbers", host(numbers.values().clone())));
        state = adamw_step(state, gradient, &numbers, &hyper);
    }
    found.extend([("weights", host(state.master.clone())), ("m", host(state.m)), ("v", host(state.v))]);
    let replaced = crate::optim::overwrite(state.master, fixed([1024], 7, device));
    found.push(("replaced weights", host(replaced)));
    found
}

/// A product that backward computes again.
fn custom_gradient(device: &Device) -> Found {
    let (x, w) = (leaf([6, 8], 1, device), leaf([8, 8], 2, device));
    let value = linear(x.clone().inner(), w.clone().inner(), None);
    let (kept, leaf_of_w) = (x.clone().inner(), w.clone());
    let y = with_gradient(value, [x.clone()], move |dy| {
        let input = Tensor::from_inner(kept).require_grad();
        let nothing = Tensor::zeros_like(&input.clone().inner());
        let product = Some(([input.clone(), leaf_of_w.clone()], dy));
        let mut gradients = gradients_behind(input.clone(), nothing, product);
        let leaves = LeafGradient::take(&leaf_of_w, &mut gradients).into_iter().collect();
        CustomGradients { inputs: [input.grad_remove(&mut gradients).expect("a gradient")], leaves }
    });
    with_gradients(y, &[("dx", &x), ("dw", &w)], &[])
}

/// Computes a case on a device.
type Case = fn(&Device) -> Found;

const CASES: [(&str, Case); 16] = [
    ("products", products),
    ("gradients of weights", gradients_of_weights),
    ("norms", norms),
    ("norms computed again", norms_again),
    ("norms of heads", norms_of_heads),
    ("rotations", rotations),
    ("gates", gates),
    ("embeddings", embeddings),
    ("attention", attentions),
    ("losses", losses),
    ("dropout", dropped),
    ("rows", rows),
    ("steps of decoding", steps_of_decoding),
    ("optimizer", optimizer),
    ("custom gradients", custom_gradient),
    ("plain words", |device| vec![("words", numbers(DropoutStream::words(u64::MAX, 5, &device.clone().inner())))]),
];

fn compare(device: &Device, name: &str) {
    let cpu = Device::flex().autodiff();
    for (what, run) in CASES {
        let wanted = {
            let _kernels = Settings::default().install();
            run(&cpu)
        };
        let found = run(&device.clone().autodiff());
        assert_eq!(found.len(), wanted.len(), "{what} on {name}");
        for ((part, found), (_, wanted)) in found.iter().zip(&wanted) {
            let finite =
                |values: &[f32]| values.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect::<Vec<_>>();
            let which = |values: &[f32]| values.iter().map(|x| x.is_finite()).collect::<Vec<_>>();
            assert_eq!(which(found), which(wanted), "{part} of {what} on {name}: finite numbers");
            let far = distance(&finite(found), &finite(wanted));
            assert!(far <= 5e-6, "{part} of {what} on {name}: relative distance {far:.1e}");
        }
    }
}

#[test]
fn references_compute_what_kernels_compute() {
    let _installed = Settings { reference_operators: true, ..Settings::default() }.install();
    compare(&Device::flex(), "the CPU, by references");
}

#[test]
fn a_device_without_kernels_computes_what_kernels_compute() {
    match wgpu() {
        Ok(device) => {
            assert!(!has_kernels(&device) && has_kernels(&Device::flex()));
            compare(&device, "wgpu");
        }
        Err(reason) => eprintln!("skipped on wgpu: {reason}"),
    }
}
