// Runs the book's own Python package, so that the page stays free to scroll meanwhile.
// It is told first where Pyodide is; then it answers questions in JSON (llmserve/playtext.py: answer).

const FOLDER = "/home/pyodide/book";
let answer = null;

async function load(where) {
  const base = new URL(where, import.meta.url).href;
  postMessage({ status: "Loading Python (about 13 MB, once) …" });
  const { loadPyodide } = await import(`${base}pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL: base });
  postMessage({ status: "Loading the book’s package …" });
  const archive = await fetch(new URL("llmserve.zip", import.meta.url));
  if (!archive.ok) throw new Error(`llmserve.zip: ${archive.status}`);
  pyodide.unpackArchive(await archive.arrayBuffer(), "zip", { extractDir: FOLDER });
  pyodide.runPython(`import sys; sys.path.insert(0, "${FOLDER}")`);
  answer = pyodide.pyimport("llmserve.playtext").answer;
}

self.onmessage = async ({ data }) => {
  try {
    if (data.load) {
      await load(data.load);
      postMessage({ ready: true });
    } else {
      postMessage({ id: data.id, text: answer(JSON.stringify(data.asked)) });
    }
  } catch (error) {
    postMessage({ id: data.id, failed: String(error.message ?? error) });
  }
};
