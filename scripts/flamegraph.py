#!/usr/bin/env python3
"""Makes a flame graph: `perf script --fields comm,ip,sym` on standard input, an SVG on standard output.

A box is a function, as wide as the samples in which it or what it called ran; what it called stands above it. The mouse
shows its name and share, and a click makes it as wide as the page.
"""

import html
import re
import sys

WIDTH, ROW = 1600, 17
# Boxes that are narrower, in pixels, are left out.
NARROWEST = 0.2

SCRIPT = """
const boxes = [...document.querySelectorAll('g')];
function draw(from, width) {
  const scale = %d / width;
  for (const box of boxes) {
    const x = +box.dataset.x, w = +box.dataset.w;
    const left = Math.max(x, from), room = (Math.min(x + w, from + width) - left) * scale;
    box.style.display = room > 0.1 ? '' : 'none';
    box.children[1].setAttribute('x', (left - from) * scale);
    box.children[1].setAttribute('width', Math.max(room, 0));
    box.children[2].setAttribute('x', (left - from) * scale + 3);
    box.children[2].textContent = room < 25 ? '' : box.dataset.name.slice(0, room / 6.6);
  }
}
for (const box of boxes) box.onclick = () => draw(+box.dataset.x, +box.dataset.w);
draw(0, %d);
""" % (WIDTH, WIDTH)


def stacks(lines):
    """Yields the names of each sample, the program's first."""
    program, frames = None, []
    for line in map(str.rstrip, lines):
        if not line:
            if program:
                yield [program] + frames[::-1]
            program, frames = None, []
        elif line[0].isspace() and program:
            words = line.split(None, 1)
            # The hash at the end of a symbol says nothing.
            frames.append(re.sub(r"::h[0-9a-f]{16}$", "", words[1] if len(words) > 1 else "?"))
        else:
            program = line.strip()
    if program:
        yield [program] + frames[::-1]


def tree(samples):
    """Nodes are [samples, children by name]."""
    root = [0, {}]
    for names in samples:
        node = root
        node[0] += 1
        for name in names:
            node = node[1].setdefault(name, [0, {}])
            node[0] += 1
    return root


def boxes(node, name, x, depth, scale):
    """Yields name, x, depth and samples of a node and of all above it."""
    yield name, x, depth, node[0]
    for child, below in sorted(node[1].items()):
        if below[0] * scale >= NARROWEST:
            yield from boxes(below, child, x, depth + 1, scale)
        x += below[0]


def main():
    title = sys.argv[1] if len(sys.argv) > 1 else "all"
    root = tree(stacks(sys.stdin))
    if not root[0]:
        sys.exit("flamegraph: there are no samples")
    sys.setrecursionlimit(10_000)
    scale = WIDTH / root[0]
    all_boxes = list(boxes(root, title, 0, 0, scale))
    height = (max(depth for _, _, depth, _ in all_boxes) + 1) * ROW
    size = f'viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11"'
    print(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>')
    for name, x, depth, samples in all_boxes:
        said, y = html.escape(name), height - (depth + 1) * ROW
        share = f"{said}: {samples} samples, {100 * samples / root[0]:.2f} %"
        colour = f"hsl({20 + sum(name.encode()) % 35} 85% {60 + len(name) % 15}%)"
        print(
            f'<g data-x="{x * scale:.3f}" data-w="{samples * scale:.3f}" data-name="{said}"><title>{share}</title>'
            f'<rect y="{y}" height="{ROW - 1}" fill="{colour}"/><text y="{y + 12}"></text></g>'
        )
    print(f"<script><![CDATA[{SCRIPT}]]></script></svg>")


main()
