#!/usr/bin/env python3
"""Runs a command and draws what it prints as an SVG of a terminal, each line at the time at which it came.

    cargo build --release && PATH="$PWD/target/release:$PATH"
    cd "$(mktemp -d)" && python3 REPOSITORY/scripts/terminal_svg.py --out REPOSITORY/docs/first-run.svg -- kiln train

Programs that know no animation show all lines. Only Python's own library is needed.
"""

import argparse
import html
import shlex
import subprocess
import textwrap
import time

SIZE, LINE, COLUMN, MARGIN = 12, 18, 7.2, 16  # pixels
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
STYLE = f"""
rect {{ fill: #f6f8fa; stroke: #d0d7de }}
text {{ font: {SIZE}px {FONT}; white-space: pre; fill: #1f2a33; animation: not-yet step-end }}
.prompt {{ fill: #007a5a; font-weight: bold }}
@keyframes not-yet {{ from, to {{ opacity: 0 }} }}
@media (prefers-color-scheme: dark) {{
rect {{ fill: #0d1117; stroke: #333c44 }}
text {{ fill: #e6eaee }}
.prompt {{ fill: #3ccfa4 }}
}}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none }} }}
"""


def recorded(command):
    """Runs the command and returns its lines with the seconds until each of them came."""
    started, lines = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            lines.append((time.monotonic() - started, line.rstrip("\n")))
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)}: exit code {process.returncode}; nothing is drawn")
    return lines


def drawn(command, lines, columns, speed):
    """Draws the lines below a prompt, broken after so many columns as a terminal breaks them."""
    prompt = [(0, "$ " + shlex.join(command), ' class="prompt"')]
    broken = [(at, part, "") for at, line in lines for part in textwrap.wrap(line, columns, drop_whitespace=False) or [""]]
    rows = prompt + broken
    width, height = round(columns * COLUMN + 2 * MARGIN), len(rows) * LINE + 2 * MARGIN
    texts = [
        f'<text{kind} x="{MARGIN}" y="{MARGIN + row * LINE + SIZE}" textLength="{len(part) * COLUMN:.1f}"'
        f' style="animation-duration: {at / speed:.2f}s">{html.escape(part, quote=False)}</text>'
        for row, (at, part, kind) in enumerate(rows)
        if part
    ]
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" xml:space="preserve">'
    title = f"<title>The terminal during {html.escape(shlex.join(command), quote=False)}</title>"
    return "\n".join([opening, title, f"<style>{STYLE}</style>", frame, *texts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the SVG")
    parser.add_argument("--columns", type=int, default=132, help="width of the terminal")
    parser.add_argument("--speed", type=float, default=2.0, help="how much faster than the command the lines appear")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    svg = drawn(arguments.command, recorded(arguments.command), arguments.columns, arguments.speed)
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(svg)


if __name__ == "__main__":
    main()
