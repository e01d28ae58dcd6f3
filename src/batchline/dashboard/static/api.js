// Calls to the server. A failed call is an ApiError with a message for a person and the request's id.

const DASHBOARD = "/api/v1/dashboard";
// How long a call may take until it counts as failed.
const LIMIT_MS = 30000;

export class ApiError extends Error {
  constructor(status, message, { code = null, requestId = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.requestId = requestId;
  }
}

/** The signed-in user, from GET /api/v1/session, or null. */
export let session = null;

export async function loadSession() {
  try {
    session = await call("GET", "/api/v1/session");
  } catch (error) {
    if (error.status !== 401) throw error;
    session = null;
  }
  return session;
}

export async function signIn(key) {
  await call("POST", "/api/v1/session", { body: { key } });
  return loadSession();
}

export async function signOut() {
  await call("DELETE", "/api/v1/session");
  session = null;
}

/** The server does not know the session any more. */
export function endSession() {
  session = null;
  window.dispatchEvent(new Event("signedout"));
}

export function isAdmin() {
  return ["admin", "operator"].includes(session?.role);
}

/** A call under /api/v1/dashboard: get("batches", {status: "paused"}, signal). Empty parameters are left out. */
export function get(path, query = {}, signal) {
  return call("GET", `${DASHBOARD}/${path}${queryString(query)}`, { signal });
}

export function post(path, body = {}) {
  return call("POST", `${DASHBOARD}/${path}`, { body });
}

export function patch(path, body) {
  return call("PATCH", `${DASHBOARD}/${path}`, { body });
}

export function queryString(query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function call(method, path, { body, signal, headers = {} } = {}) {
  const response = await send(method, path, { body, signal, headers });
  const text = await response.text();
  return text ? JSON.parse(text, exactNumbers) : null;
}

/** The text of an answer that is not JSON, such as the start of a file. */
export async function text(path, headers, signal) {
  const response = await send("GET", path, { headers, signal });
  return response.text();
}

async function send(method, path, { body, signal, headers }) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: {
        ...headers,
        ...changing(method),
        ...(body === undefined ? {} : { "content-type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const reason = error.name === "TimeoutError" ? "did not answer within 30 seconds" : "cannot be reached";
    throw new ApiError(0, `The server ${reason}. Check that it runs and that you are online, then try again.`);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** What a request needs that changes something. */
export function changing(method) {
  return method === "GET" || !session ? {} : { "x-batchline-csrf": session.csrf };
}

async function failure(response) {
  const requestId = response.headers.get("x-request-id");
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  if (response.status === 401 && session) endSession();
  const message = error.message ?? `The server answered ${response.status}.`;
  return new ApiError(response.status, message, { code: error.code, requestId });
}

// JavaScript would round large integers, such as ids in requests. JSON.rawJSON keeps their digits.
function exactNumbers(_key, value, context) {
  const rounded =
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d{16,}$/.test(context?.source ?? "");
  return rounded && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}
