// Uploads with progress. fetch does not report how much it has sent, so this uses XMLHttpRequest.

import { ApiError, changing } from "./api.js";

/** Upload one file for batches. `progress` gets a share from 0 to 1. Resolves to the file object. */
export function upload(file, progress) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", file);
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/files");
    for (const [name, value] of Object.entries(changing("POST"))) request.setRequestHeader(name, value);
    request.upload.onprogress = ({ loaded, total }) => progress(total ? loaded / total : 0);
    request.onload = () => {
      const body = parsed(request.responseText);
      if (request.status < 300) return resolve(body);
      const message = body?.error?.message ?? `The server answered ${request.status}.`;
      reject(new ApiError(request.status, message, { requestId: request.getResponseHeader("x-request-id") }));
    };
    request.onerror = () =>
      reject(new ApiError(0, "The upload was interrupted. Check the connection and drop the file again."));
    request.send(form);
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
