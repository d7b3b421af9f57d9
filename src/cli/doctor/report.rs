//! The findings of the doctor, as lines.

use std::fmt;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Found.
    Good(String),
    /// Not found and not needed.
    Absent(String),
    /// Not found; only some uses need it.
    Optional { found: String, packages: String },
    /// Found, but it makes training slower than it could be.
    Slow { found: String, remedy: String },
    /// Not found, but the GPU cannot be used without it.
    Missing { found: String, remedy: String },
}

/// All checks, in order.
#[derive(Debug, Default)]
pub(super) struct Report {
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Section(&'static str),
    Item(&'static str, Finding),
}

impl Report {
    pub(super) fn section(&mut self, title: &'static str) {
        self.lines.push(Line::Section(title));
    }

    pub(super) fn add(&mut self, name: &'static str, finding: Finding) {
        self.lines.push(Line::Item(name, finding));
    }

    fn missing(&self) -> usize {
        self.lines.iter().filter(|line| matches!(line, Line::Item(_, Finding::Missing { .. }))).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            match line {
                Line::Section(title) => writeln!(f, "{title}")?,
                Line::Item(name, Finding::Good(found)) => writeln!(f, "  ok       {name}: {found}")?,
                Line::Item(name, Finding::Absent(found)) => writeln!(f, "  -        {name}: {found}")?,
                Line::Item(name, Finding::Optional { found, packages }) => {
                    writeln!(f, "  optional {name}: {found}\n             packages: {packages}")?;
                }
                Line::Item(name, Finding::Slow { found, remedy }) => {
                    writeln!(f, "  slow     {name}: {found}\n             remedy: {remedy}")?;
                }
                Line::Item(name, Finding::Missing { found, remedy }) => {
                    writeln!(f, "  MISSING  {name}: {found}\n             remedy: {remedy}")?;
                }
            }
        }
        match self.missing() {
            0 => writeln!(f, "Ready to train; try: kiln train"),
            1 => writeln!(f, "1 thing is missing for training on the GPU; the CPU is ready: kiln train --device cpu"),
            n => {
                writeln!(f, "{n} things are missing for training on the GPU; the CPU is ready: kiln train --device cpu")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_things_come_with_remedies_and_a_verdict() {
        let mut report = Report::default();
        report.section("Device");
        report.add("cpu", Finding::Good("CPU (2 threads)".into()));
        assert!(report.to_string().ends_with("Ready to train; try: kiln train\n"));
        report.add(
            "driver",
            Finding::Missing { found: "libcuda.so.1 not found".into(), remedy: "apt-get install libcuda1".into() },
        );
        let text = report.to_string();
        assert!(text.contains("MISSING  driver: libcuda.so.1 not found\n             remedy: apt-get"), "{text}");
        assert!(text.contains("1 thing is missing") && text.contains("--device cpu"), "{text}");
    }
}
