// Builds nodes and updates them in place. Text becomes text nodes, never markup, so data cannot inject elements.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: h("a.name", {href, onclick}, child, [children], "text"). Null and false are left out. */
export function h(tag, props, ...children) {
  return build((name) => document.createElement(name), tag, props, children);
}

/** An SVG element, in the same way. */
export function s(tag, props, ...children) {
  return build((name) => document.createElementNS(SVG, name), tag, props, children);
}

function build(create, tag, props, children) {
  const [name, ...classes] = tag.split(".");
  const node = create(name);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  const given = props && !(props instanceof Node) && !Array.isArray(props) && typeof props === "object";
  if (!given) children.unshift(props);
  for (const [key, value] of Object.entries(given ? props : {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") {
      node[key] = value;
      (node.handlers ??= []).push(key);
    } else if (key === "class") {
      node.setAttribute("class", [...classes, value].join(" "));
    } else {
      node.setAttribute(key, value === true ? "" : value);
    }
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

/** Make `node` look like `wanted` and return the node that is in the document now.
 *
 * Elements that stay keep their focus, scroll position and typed text. Children with data-key are matched by it.
 * An element with data-own manages itself. An element with data-live is marked for a moment when its text changes.
 */
export function morph(node, wanted) {
  if (node.nodeType !== wanted.nodeType || node.nodeName !== wanted.nodeName || keyOf(node) !== keyOf(wanted)) {
    node.replaceWith(wanted);
    return wanted;
  }
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return node;
  }
  if (node.hasAttribute("data-own")) return node;
  const before = node.hasAttribute("data-live") ? node.textContent : null;
  morphAttributes(node, wanted);
  morphChildren(node, wanted);
  if (before !== null && before !== node.textContent) mark(node);
  return node;
}

function keyOf(node) {
  return node.dataset?.key ?? null;
}

function morphAttributes(node, wanted) {
  const marked = node.classList.contains("changed");
  for (const { name } of [...node.attributes]) {
    // The user opens and closes details; a dialog opens itself.
    if (!wanted.hasAttribute(name) && name !== "open") node.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (node.getAttribute(name) === value) continue;
    node.setAttribute(name, value);
    if (name === "value" && node !== document.activeElement) node.value = value;
  }
  // The mark of a change stays until its animation ends.
  if (marked) node.classList.add("changed");
  if ("checked" in node) node.checked = wanted.checked;
  if (node.nodeName === "OPTION") node.selected = wanted.selected;
  for (const name of node.handlers ?? []) node[name] = null;
  for (const name of wanted.handlers ?? []) node[name] = wanted[name];
  node.handlers = wanted.handlers;
}

function morphChildren(node, wanted) {
  const keyed = new Map();
  for (const child of node.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  let current = node.firstChild;
  for (const next of [...wanted.childNodes]) {
    const known = keyOf(next) && keyed.get(keyOf(next));
    if (known) {
      keyed.delete(keyOf(next));
      if (known === current) current = current.nextSibling;
      else node.insertBefore(known, current);
      morph(known, next);
    } else if (current && !keyOf(current) && !keyOf(next)) {
      current = morph(current, next).nextSibling;
    } else {
      node.insertBefore(next, current);
    }
  }
  while (current) {
    const gone = current;
    current = current.nextSibling;
    gone.remove();
  }
}

function mark(node) {
  node.classList.remove("changed");
  // Reading the width restarts the animation.
  void node.offsetWidth;
  node.classList.add("changed");
  node.onanimationend = () => node.classList.remove("changed");
}
