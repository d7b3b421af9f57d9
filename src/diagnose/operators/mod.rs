//! The time of each operator of a training step alone, at the shapes of a workload: which part of the step is how far from
//! what the device could do.
//!
//! Forward passes and products are called as the model calls them. A backward pass is timed as forward and backward
//! together, less the forward, less what starts the gradient (a product with a random tensor and its own backward). Many
//! calls are enqueued before the device is waited for, so that launches hide behind each other as they do in a step.

mod beside;
mod calls;
mod timing;
mod work;

use anyhow::Result;
pub use beside::{Beside, beside};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use calls::Calls;
use kiln_kernels::optim::gather;
use kiln_kernels::{
    Activation, AttentionConfig, AttentionMask, Branch, CrossEntropyConfig, DropoutStream, NormWeights, Projected,
    Projection, add_norm, attention, cross_entropy, embed, linear, linear_activated, linear_cross_entropy,
    linear_residual, linear_transposed, linear_weight_gradient,
};
use kiln_model::TransformerConfig;
use timing::Stopwatch;
pub use timing::Timed;
pub use work::{Peaks, Work};

use super::workload::Workload;
use crate::optim::FlatGradients;
use crate::train::TrainState;

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorTime {
    /// Which operator, and which of its passes.
    pub name: String,
    /// At which shape.
    pub shape: String,
    /// How often a step calls it.
    pub calls: usize,
    /// One call.
    pub time: Timed,
    /// What a call must do.
    pub work: Work,
}

impl OperatorTime {
    /// Seconds of a step.
    pub fn of_step(&self) -> f64 {
        self.calls as f64 * self.time.device
    }
}

/// Times the operators of `workload`'s step, `repeats` times each.
///
/// # Errors
/// If the device fails.
pub fn measure(workload: &Workload, dtype: FloatDType, device: &Device, repeats: usize) -> Result<Vec<OperatorTime>> {
    let mut bench = Bench::new(dtype, device, repeats);
    let calls = Calls::of(workload, &bench.device);
    for product in &calls.products {
        bench.product(product)?;
        if let Some(activation) = product.activation {
            bench.activation(product.shape, product.calls, activation, calls.activation_dropout)?;
        }
    }
    for attended in &calls.attention {
        bench.attention(attended)?;
    }
    for (rows, n) in &calls.norms {
        bench.norm([*rows, workload.model.d_model], *n, calls.dropout, workload.model.bias)?;
    }
    for (ids, vocabulary) in calls.embeddings {
        bench.embedding(ids, [vocabulary, workload.model.d_model], calls.length, calls.dropout)?;
    }
    let (labels, ignored) = calls.labels;
    let config =
        CrossEntropyConfig { label_smoothing: workload.config.train.label_smoothing, ignore_index: i64::from(ignored) };
    bench.head(&labels, &workload.model, &config)?;
    bench.cross_entropy(labels, workload.model.vocab_size(), &config, calls.whole_head)?;
    bench.optimizer(workload)?;
    Ok(bench.rows)
}

struct Bench {
    watch: Stopwatch,
    device: Device,
    dtype: FloatDType,
    /// Bytes of an element.
    element: usize,
    stream: DropoutStream,
    rows: Vec<OperatorTime>,
}

impl Bench {
    fn new(dtype: FloatDType, device: &Device, repeats: usize) -> Self {
        let device = device.clone().inner();
        Self {
            watch: Stopwatch::new(&device, repeats),
            element: DType::from(dtype).size(),
            stream: DropoutStream::new(1, 0, &device),
            device,
            dtype,
            rows: Vec::new(),
        }
    }

    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let drawn: Tensor<D> = Tensor::random(shape, Distribution::Normal(0.0, 1.0), (&self.device, DType::F32));
        drawn.cast(self.dtype)
    }

    /// A leaf whose gradient is wanted.
    fn leaf<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_inner(self.random(shape)).require_grad()
    }

    /// A tensor that the graph takes as a constant.
    fn constant<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_inner(self.random(shape))
    }

    fn row(&mut self, name: &str, shape: String, calls: usize, time: Timed, work: Work) {
        self.rows.push(OperatorTime { name: name.into(), shape, calls, time, work });
    }

    /// Bytes of `n` elements.
    fn bytes(&self, n: usize) -> usize {
        n * self.element
    }

    /// Forward and backward of `run`, whose result has `shape`, from a random gradient, less what makes that gradient.
    fn with_backward(&self, shape: [usize; 2], run: impl Fn() -> Tensor<2>) -> Result<Timed> {
        let direction = self.constant(shape);
        let kept = 8.0 * self.bytes(shape[0] * shape[1]) as f64;
        let both = self.watch.time(kept, || {
            let y = run();
            let root = y.clone() * direction.clone();
            let gradients = root.backward();
            (y, root, gradients)
        })?;
        let leaf = self.leaf(shape);
        let seed = self.watch.time(kept, || {
            let root = leaf.clone() * direction.clone();
            let gradients = root.backward();
            (root, gradients)
        })?;
        Ok(both.without(seed))
    }

    fn product(&mut self, product: &calls::Product) -> Result<()> {
        let calls::Product { shape: [m, k, n], calls, transposed, bias, residual, activation } = *product;
        let (x, dy) = (self.random([m, k]), self.random([m, n]));
        let w = self.random(if transposed { [n, k] } else { [k, n] });
        let b = bias.then(|| self.random([n]));
        let added = residual.then(|| self.random([m, n]));
        let shape = format!("{m} x {k} x {n}");
        let work = Work::product([m, k, n], self.element);
        let kept = |n: usize| self.bytes(n) as f64;
        let forward = self.watch.time(kept(m * n), || match &added {
            Some(added) => linear_residual(x.clone(), w.clone(), b.clone(), added.clone()),
            None if transposed => linear_transposed(x.clone(), w.clone(), None),
            None => linear(x.clone(), w.clone(), b.clone()),
        })?;
        let dx = self.watch.time(kept(m * k), || match transposed {
            true => linear(dy.clone(), w.clone(), None),
            false => linear_transposed(dy.clone(), w.clone(), None),
        })?;
        let dw = self.watch.time(kept(k * n), || match transposed {
            true => linear_weight_gradient(dy.clone(), x.clone()),
            false => linear_weight_gradient(x.clone(), dy.clone()),
        })?;
        let forward_work = Work { bytes: work.bytes + if residual { kept(m * n) } else { 0.0 }, ..work };
        self.row(
            if residual { "linear + residual" } else { "linear forward" },
            shape.clone(),
            calls,
            forward,
            forward_work,
        );
        self.row("linear dX", shape.clone(), calls, dx, work);
        self.row("linear dW", shape.clone(), calls, dw, work);
        // After an activation, its backward sums the bias's gradient; after a residual sum, the norm's.
        if bias && !residual && activation.is_none() {
            let (x, w, b) = (Tensor::from_inner(x), Tensor::from_inner(w), self.leaf([n]));
            let both = self.with_backward([m, n], || linear(x.clone(), w.clone(), Some(b.clone())))?;
            let work = Work::moved(self.bytes(m * n + n));
            self.row("linear db", format!("{m} x {n}"), calls, both.without(forward), work);
        }
        Ok(())
    }

    /// What an activation costs on top of its product.
    fn activation(&mut self, [m, k, n]: [usize; 3], calls: usize, by: Activation, p: f64) -> Result<()> {
        let (x, w, b) = (self.constant([m, k]), self.constant([k, n]), self.leaf([n]));
        let kept = 2.0 * self.bytes(m * n) as f64;
        let product = self.watch.time(kept, || linear(x.clone(), w.clone(), Some(b.clone())))?;
        let drop = (p > 0.0).then_some((p, &self.stream));
        let activated = || linear_activated(x.clone(), w.clone(), Some(b.clone()), by, drop);
        let forward = self.watch.time(kept, activated)?;
        // Only the bias wants a gradient: backward ends with the activation.
        let both = self.with_backward([m, n], activated)?;
        let shape = format!("{m} x {n}");
        let (two, three) = (Work::moved(self.bytes(2 * m * n)), Work::moved(self.bytes(3 * m * n)));
        self.row(&format!("{by:?} forward"), shape.clone(), calls, forward.without(product), two);
        self.row(&format!("{by:?} backward, db"), shape, calls, both.without(forward), three);
        Ok(())
    }

    fn attention(&mut self, attended: &calls::Attended) -> Result<()> {
        let calls::Attended {
            kind,
            calls,
            batch_size: b,
            heads: h,
            lens: [t, s],
            head_dim: k,
            causal,
            dropout,
            lengths,
        } = attended;
        let (b, h, t, s, k) = (*b, *h, *t, *s, *k);
        let width = h * k;
        let leaves = match kind.is_cross() {
            true => [self.leaf([b * t, width]), self.leaf([b * s, 2 * width])],
            // The second goes unused.
            false => [self.leaf([b * t, 3 * width]), self.leaf([1, 1])],
        };
        let mask = lengths.clone().map_or_else(AttentionMask::default, AttentionMask::key_lengths);
        let config = AttentionConfig { batch_size: b, n_heads: h, n_kv_heads: h, causal: *causal };
        let drop = (*dropout > 0.0).then_some((*dropout, &self.stream));
        let run = || {
            let [first, second] = leaves.clone();
            let projected = match kind.is_cross() {
                true => Projected::Cross { query: first, key_value: second },
                false => Projected::SelfAttention { qkv: first },
            };
            attention(projected, &mask, drop, &config)
        };
        let forward = self.watch.time(2.0 * self.bytes(b * t * width) as f64, run)?;
        let both = self.with_backward([b * t, width], run)?;
        // Two products forward, five backward; half of each square where it is causal.
        let pairs = (b * h * t * s * k) as f64 * if *causal { 0.5 } else { 1.0 };
        let (queries, keys) = (self.bytes(b * t * width), self.bytes(b * s * width));
        let work = |products: f64, bytes: usize| Work { flops: 2.0 * products * pairs, bytes: bytes as f64 };
        let shape = format!("{b} x {h} x {t} x {s} x {k}");
        let name = |pass: &str| format!("attention{kind} {pass}");
        self.row(&name("forward"), shape.clone(), *calls, forward, work(2.0, 2 * queries + 2 * keys));
        self.row(&name("backward"), shape, *calls, both.without(forward), work(5.0, 4 * queries + 4 * keys));
        Ok(())
    }

    /// Residual sum, dropout and norm, four in a row as in a model: the gradient of a sum meets that of a norm. Where nothing is
    /// dropped, forward has a norm alone.
    fn norm(&mut self, [m, d]: [usize; 2], calls: usize, p: f64, bias: bool) -> Result<()> {
        const CHAIN: usize = 4;
        let (gamma, beta, x) = (self.leaf([d]), self.leaf([d]), self.leaf([m, d]));
        let bias = bias.then(|| self.leaf([d]));
        let drop = (p > 0.0).then_some((p, &self.stream));
        let norm = || NormWeights { gamma: gamma.clone(), beta: Some(beta.clone()), eps: 1e-5 };
        let chain = || {
            let mut kept = vec![(x.clone(), x.clone())];
            for _ in 0..CHAIN {
                let (sum, normed) = kept[kept.len() - 1].clone();
                kept.push(add_norm(sum, Some(Branch { bias: bias.clone(), ..normed.into() }), drop, norm()));
            }
            kept
        };
        let kept = 8.0 * CHAIN as f64 * self.bytes(m * d) as f64;
        let summed = self.watch.time(kept, chain)?;
        let both = self.watch.time(kept, || {
            let kept = chain();
            let gradients = kept[CHAIN].1.backward();
            (kept, gradients)
        })?;
        let norms = || {
            let mut kept = vec![x.clone()];
            for _ in 0..CHAIN {
                kept.push(add_norm(kept[kept.len() - 1].clone(), None, None, norm()).1);
            }
            kept
        };
        let (name, forward, passes) = match drop {
            Some(_) => ("residual + norm forward", summed, 4),
            None => ("norm forward", self.watch.time(kept, norms)?, 2),
        };
        // With dropout the gradients of both sides of the sum differ.
        let back = self.bytes((if p > 0.0 { 5 } else { 4 }) * m * d);
        let shape = format!("{m} x {d}");
        self.row(name, shape.clone(), calls, forward.over(CHAIN), Work::moved(self.bytes(passes * m * d)));
        self.row("residual + norm backward", shape, calls, both.without(summed).over(CHAIN), Work::moved(back));
        Ok(())
    }

    /// Rows of a table, scaled, with `t` learned positions, dropped.
    fn embedding(&mut self, ids: Tensor<1, burn::tensor::Int>, [v, d]: [usize; 2], t: usize, p: f64) -> Result<()> {
        let ([m], table, places) = (ids.dims(), self.leaf([v, d]), self.leaf([t, d]));
        let ids = Tensor::from_inner(ids);
        let drop = (p > 0.0).then_some((p, &self.stream));
        let run = || embed(ids.clone(), table.clone(), (d as f64).sqrt(), Some(places.clone()), drop);
        let forward = self.watch.time(self.bytes(m * d) as f64, run)?;
        let both = self.with_backward([m, d], run)?;
        let shape = format!("{m} of {v} x {d}");
        // Backward reads the gradient for the table and for the positions.
        let (two, back) = (Work::moved(self.bytes(2 * m * d)), Work::moved(self.bytes((2 * m + v + t) * d)));
        self.row("embedding forward", shape.clone(), 1, forward, two);
        self.row("embedding backward", shape, 1, both.without(forward), back);
        Ok(())
    }

    /// The output projection and its loss as the model computes them, a chunk of rows at a time: the gradients come with the
    /// loss. The whole product and the whole cross-entropy are then no part of the step.
    fn head(
        &mut self,
        labels: &Tensor<1, burn::tensor::Int>,
        model: &TransformerConfig,
        config: &CrossEntropyConfig,
    ) -> Result<()> {
        let [m] = labels.dims();
        let (chunk_rows, d, v) = (model.logits_chunk(m), model.d_model, model.vocab_size());
        if chunk_rows == 0 {
            return Ok(());
        }
        let (x, weight, labels) = (self.leaf([m, d]), self.leaf([v, d]), Tensor::from_inner(labels.clone()));
        let bytes = self.bytes(2 * (m * d + v * d)) as f64;
        let time = self.watch.time(bytes, || {
            let projection = Projection { weight: weight.clone(), transposed: true, bias: None };
            let sums = linear_cross_entropy(x.clone(), projection, labels.clone(), config, chunk_rows);
            let gradients = sums.loss_sum.backward();
            (sums, gradients)
        })?;
        let work = Work { flops: 3.0 * Work::product([m, d, v], self.element).flops, bytes };
        self.row("projection + loss, both", format!("{m} x {d} x {v} by {chunk_rows}"), 1, time, work);
        Ok(())
    }

    fn cross_entropy(
        &mut self,
        labels: Tensor<1, burn::tensor::Int>,
        v: usize,
        config: &CrossEntropyConfig,
        calls: usize,
    ) -> Result<()> {
        let [m] = labels.dims();
        let (logits, labels) = (self.leaf([m, v]), Tensor::from_inner(labels));
        let run = || cross_entropy(logits.clone(), labels.clone(), config);
        let kept = 2.0 * self.bytes(m * v) as f64;
        let forward = self.watch.time(kept, run)?;
        let both = self.watch.time(kept, || {
            let sums = run();
            let gradients = sums.loss_sum.backward();
            (sums, gradients)
        })?;
        let shape = format!("{m} x {v}");
        self.row("cross-entropy forward", shape.clone(), calls, forward, Work::moved(self.bytes(m * v)));
        let back = Work::moved(self.bytes(2 * m * v));
        self.row("cross-entropy backward", shape, calls, both.without(forward), back);
        Ok(())
    }

    /// Gradients made flat, with the sum of their squares, and the step from them.
    fn optimizer(&mut self, workload: &Workload) -> Result<()> {
        let TrainState { mut optimizer, .. } =
            TrainState::new(&workload.config, &workload.model, self.dtype, &self.device);
        let table = optimizer.table().clone();
        let places: Vec<_> = table.entries().iter().map(|entry| entry.place()).collect();
        let parts: Vec<Tensor<1>> = table.entries().iter().map(|entry| self.random([entry.len()])).collect();
        let (n, dtype) = (table.flat_len(), DType::from(self.dtype));
        let flatten = || {
            let parts = parts.iter().cloned().map(Into::into).collect();
            gather(parts, &places, n, dtype, &self.device, None)
        };
        let flattened = self.watch.time(self.bytes(n) as f64, flatten)?;
        let (flat, one) = (flatten(), Tensor::<1>::ones([1], (&self.device, DType::F32)));
        let step = || optimizer.step(FlatGradients(flat.clone()), one.clone(), one.clone());
        let stepped = self.watch.time(self.bytes(n) as f64, step)?;
        let shape = format!("{:.1} M in {} tensors", table.n_params() as f64 / 1e6, places.len());
        self.row("flat gradients", shape.clone(), 1, flattened, Work::moved(self.bytes(2 * n)));
        // Gradient in; master and both moments in and out; the rounded weights out, where there are any.
        let weights = if dtype == DType::F32 { 0 } else { self.element };
        self.row("norm, clip, AdamW", shape, 1, stepped, Work::moved(n * (24 + self.element + weights)));
        Ok(())
    }
}
