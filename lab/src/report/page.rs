//! The page of a report: one HTML file without scripts, fonts or addresses of its own, so that it needs no network.

use std::fmt::Write;

use anyhow::Result;

use super::catalogue::Section;
use super::colours::{COLOURS, dark_rules, escaped};
use super::curves::Figure;
use super::draw::for_page;
use super::histogram;
use super::history::{History, Sample};
use super::tables::{Table, differences, lengths, numbers, spread, summary};
use crate::diagnose::run_record::SHORT_TEXTS;

const STYLE: &str = include_str!("style.css");
/// In every page of this module and in no other file.
pub const MARK: &str = "<meta name=\"generator\" content=\"kiln report\">";
/// Versions of a sample that are shown, from the first to the last.
const SHOWN_SAMPLES: usize = 12;
/// Samples that are followed through the run.
const SOURCES: usize = 8;

/// How a page is kept up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refresh {
    /// It is a file.
    Never,
    /// It is served, and loads itself again after so many seconds.
    Every(u32),
    /// It is served, and stays as it is.
    Paused,
}

/// Writes the page of `runs`.
///
/// # Errors
/// If a figure cannot be drawn.
pub fn page(runs: &[History], refresh: Refresh) -> Result<String> {
    let figures = Figure::all(runs);
    let samples: String = runs.iter().map(|run| samples(run, runs.len() > 1)).collect();
    let sections = Section::ALL.map(|section| (section, of_section(section, &figures)));

    let data = data(runs)?;

    let mut links = vec![("runs", "Runs")];
    if !data.is_empty() {
        links.push(("data", "Data"));
    }
    links.extend(
        sections.iter().filter(|(_, of)| !of.is_empty()).map(|(section, _)| (anchor(*section), section.heading())),
    );
    if !samples.is_empty() {
        links.push(("samples", "Samples"));
    }
    let profiles: String = runs.iter().map(|run| profiles(run, runs.len() > 1)).collect();
    if !profiles.is_empty() {
        links.push(("profiles", "Profiles"));
    }
    links.push(("notes", "Notes"));

    let names = runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut body = format!("<h1>{}</h1>", escaped(&names));
    body += &refresh_line(refresh);
    body += "<nav aria-label=\"Sections\"><ul>";
    for (id, name) in links {
        let _ = write!(body, "<li><a href=\"#{id}\">{name}</a></li>");
    }
    body += "</ul></nav></header><main id=\"main\"><section id=\"runs\" aria-labelledby=\"runs-h\"><h2 id=\"runs-h\">Runs</h2>";
    body += &html(&summary(runs));
    if runs.iter().any(|run| run.has_short_texts) {
        let _ = write!(body, "<p>{SHORT_TEXTS}</p>");
    }
    body += &what_differs(runs);
    body += "</section>";
    body += &data;

    for (section, figures) in sections {
        if figures.is_empty() {
            continue;
        }
        let (id, heading) = (anchor(section), section.heading());
        let _ = write!(
            body,
            "<section id=\"{id}\" aria-labelledby=\"{id}-h\"><h2 id=\"{id}-h\">{heading}</h2><div class=\"figures\">"
        );
        for figure in figures {
            body += &one_figure(figure)?;
        }
        body += "</div></section>";
    }
    if !samples.is_empty() {
        let _ = write!(
            body,
            "<section id=\"samples\" aria-labelledby=\"samples-h\"><h2 id=\"samples-h\">Samples</h2>{samples}</section>"
        );
    }
    if !profiles.is_empty() {
        let _ = write!(
            body,
            "<section id=\"profiles\" aria-labelledby=\"profiles-h\"><h2 id=\"profiles-h\">Profiles</h2>{profiles}</section>"
        );
    }
    body += &notes(runs);
    Ok(document(&names, &mark_of(runs), &body, refresh))
}

/// Returns what the page of `runs` contains in whichever order they come, and the page of other runs does not.
pub fn mark_of(runs: &[History]) -> String {
    let mut names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    names.sort_unstable();
    format!("<meta name=\"runs\" content=\"{}\">", escaped(&names.join(", ")))
}

/// Writes the page that is served until there is something to show.
pub fn waiting(why: &str, refresh: Refresh) -> String {
    let body = format!(
        "<h1>Nothing to show yet</h1>{}</header><main id=\"main\"><p>{}</p></main>",
        refresh_line(refresh),
        escaped(why)
    );
    document("waiting", "", &body, refresh)
}

fn document(title: &str, mark: &str, body: &str, refresh: Refresh) -> String {
    let again = match refresh {
        Refresh::Every(secs) => format!("<meta http-equiv=\"refresh\" content=\"{secs}\">"),
        Refresh::Never | Refresh::Paused => String::new(),
    };
    let swatches: String = COLOURS
        .iter()
        .enumerate()
        .map(|(i, [light, dark])| {
            format!(".c{i}{{background:{light}}}@media (prefers-color-scheme:dark){{.c{i}{{background:{dark}}}}}")
        })
        .collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{MARK}{mark}\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">{again}\
         <title>{} - kiln report</title>\n<style>\n{STYLE}{swatches}@media (prefers-color-scheme:dark){{{}}}</style></head>\n\
         <body><a class=\"skip\" href=\"#main\">Skip to the content</a><header>{body}\
         <footer><p class=\"soft\">Made by kiln report {}. Token counts and speeds exclude padding.</p></footer></body></html>\n",
        escaped(title),
        dark_rules("figure svg "),
        env!("CARGO_PKG_VERSION")
    )
}

fn refresh_line(refresh: Refresh) -> String {
    match refresh {
        Refresh::Never => String::new(),
        Refresh::Every(secs) => format!(
            "<p class=\"soft\">This page loads itself again every {secs} seconds. <a href=\"/paused\">Stop that</a></p>"
        ),
        Refresh::Paused => {
            "<p class=\"soft\">This page stays as it is. <a href=\"/\">Keep it up to date</a></p>".to_owned()
        }
    }
}

fn anchor(section: Section) -> &'static str {
    match section {
        Section::Learning => "learning",
        Section::Speed => "speed",
        Section::Device => "device",
    }
}

fn of_section(section: Section, figures: &[Figure]) -> Vec<&Figure> {
    figures.iter().filter(|figure| figure.section() == section).collect()
}

/// A picture with its heading, a caption, and its numbers as a table.
fn one_figure(figure: &Figure) -> Result<String> {
    let averaged = match figure.averaged {
        1 => String::new(),
        n => format!("<figcaption>Faint: single steps. Solid: mean over {n} steps.</figcaption>"),
    };
    Ok(format!(
        "<figure id=\"{id}\"><h3>{}</h3>{}{averaged}<details><summary>Numbers<span class=\"soft\"> of {}</span></summary>{}</details></figure>\n",
        escaped(&figure.title),
        for_page(figure)?,
        escaped(&figure.title),
        html(&numbers(figure)),
        id = escaped(&figure.id),
    ))
}

/// The lengths of the training rows of each run that knows them.
fn data(runs: &[History]) -> Result<String> {
    let mut figures = String::new();
    for (number, run) in (1..).zip(runs).filter(|(_, run)| !run.lengths.is_empty()) {
        let id = if runs.len() == 1 { "lengths".to_owned() } else { format!("lengths-{number}") };
        let of = if runs.len() == 1 { String::new() } else { format!(": {}", run.name) };
        let _ = writeln!(
            figures,
            "<figure id=\"{id}\"><h3>{}</h3>{}<details><summary>Numbers<span class=\"soft\"> of lengths</span></summary>{}</details></figure>",
            escaped(&format!("Lengths of training rows{of}")),
            histogram::for_page(&run.lengths, &id)?,
            html(&lengths(&run.lengths)),
        );
    }
    Ok(match figures.is_empty() {
        true => figures,
        false => format!(
            "<section id=\"data\" aria-labelledby=\"data-h\"><h2 id=\"data-h\">Data</h2><div class=\"figures\">{figures}</div></section>"
        ),
    })
}

fn what_differs(runs: &[History]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let unreadable = runs.iter().filter(|run| run.config.is_none());
    let mut out = String::from("<h3>What differs in their configurations</h3>");
    for run in unreadable {
        let _ = write!(
            out,
            "<p>The configuration of {} cannot be read by this version of Kiln and is not compared.</p>",
            escaped(&run.name)
        );
    }
    match differences(runs) {
        table if table.rows.is_empty() => out + "<p>Nothing.</p>",
        table => out + &html(&table),
    }
}

/// A table that scrolls by itself where the page is narrow, also by keyboard.
fn html(table: &Table) -> String {
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table><thead><tr>",
        escaped(&table.name)
    );
    for (i, head) in table.head.iter().enumerate() {
        let swatch = match i.checked_sub(1).filter(|_| table.has_colours) {
            Some(run) => format!("<span class=\"swatch c{}\"></span>", run % COLOURS.len()),
            None => String::new(),
        };
        let _ = write!(out, "<th scope=\"col\">{swatch}{}</th>", escaped(head));
    }
    out += "</tr></thead><tbody>";
    for row in &table.rows {
        let (first, rest) = row.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escaped(first));
        for cell in rest {
            let class = if cell.chars().count() > 40 { " class=\"long\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escaped(cell));
        }
        out += "</tr>";
    }
    out + "</tbody></table></div>"
}

/// What a run wrote about the same source at different steps.
fn samples(run: &History, is_named: bool) -> String {
    let mut sources: Vec<&str> = Vec::new();
    for sample in &run.samples {
        if !sources.contains(&sample.source.as_str()) && sources.len() < SOURCES {
            sources.push(&sample.source);
        }
    }

    let mut out = String::new();
    for source in sources {
        let of: Vec<&Sample> = run.samples.iter().filter(|sample| sample.source == source).collect();
        let mut rows: Vec<Vec<String>> =
            spread(&of, SHOWN_SAMPLES).map(|sample| vec![sample.step.to_string(), sample.output.clone()]).collect();
        rows.extend(of[0].reference.iter().map(|reference| vec!["wanted".into(), reference.clone()]));
        let table = Table {
            name: format!("Samples for {source}"),
            head: vec!["step".into(), "text".into()],
            rows,
            has_colours: false,
        };
        let name = if is_named { format!("{}: ", run.name) } else { String::new() };
        let _ = write!(out, "<h3>{}</h3>{}", escaped(&format!("{name}{source}")), html(&table));
    }
    out
}

/// Where the time of the steps went that a run has profiled.
fn profiles(run: &History, is_named: bool) -> String {
    let mut out = String::new();
    for profile in &run.profiles {
        let of = if is_named { format!(" of {}", run.name) } else { String::new() };
        let name = format!("Step {}{of}", profile.step);
        let _ = write!(out, "<h3>{}</h3>", escaped(&name));
        for sentence in profile.sentences() {
            let _ = write!(out, "<p>{}</p>", escaped(&sentence));
        }
        let head = ["operator, all sizes", "calls", "ms", "share", "roof"].map(str::to_owned).to_vec();
        let rows = profile.operators();
        if !rows.is_empty() {
            out += &html(&Table { name: format!("Operators in {name}"), head, rows, has_colours: false });
        }
    }
    out
}

fn notes(runs: &[History]) -> String {
    let mut out = String::from("<section id=\"notes\" aria-labelledby=\"notes-h\"><h2 id=\"notes-h\">Notes</h2>");
    for run in runs {
        let rows = run.notes.iter().map(|note| vec![note.step.to_string(), note.text.clone()]).collect();
        let name = format!("Notes of {}", run.name);
        let table = Table { name, head: vec!["after step".into(), "note".into()], rows, has_colours: false };
        let table = if table.rows.is_empty() { "<p>None.</p>".into() } else { html(&table) };
        // Several runs have many notes in common.
        let _ = match runs.len() {
            1 => write!(out, "{table}"),
            _ => write!(out, "<details><summary>{}</summary>{table}</details>", escaped(&run.name)),
        };
    }
    out + "</section></main>"
}
