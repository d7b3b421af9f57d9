//! Pictures and pages of what runs have logged.
//!
//! [`history`] reads a run folder, also while the run goes on. [`catalogue`] lists the figures and the fields of
//! `metrics.jsonl` that they show; [`curves`] makes them short enough for a page; [`draw`] and [`picture`] turn them into SVG
//! and PNG files, [`histogram`] draws lengths, and [`roofline`] a profile. [`page`] and [`tables`] make one HTML file of everything, and [`live`] serves it.

pub mod catalogue;
pub mod colours;
pub mod curves;
pub mod draw;
pub mod histogram;
pub mod history;
pub mod live;
pub mod memory_line;
pub mod page;
pub mod picture;
pub mod profiles;
pub mod roofline;
pub mod tables;
