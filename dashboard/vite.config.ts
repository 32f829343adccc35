import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

const coordinator = process.env.SHOAL_URL ?? "http://127.0.0.1:8080";

/** Smaller files fit into one packet as they are. */
const COMPRESSED_MIN = 1024;

/** Lays a .br and a .gz beside each built file that shrinks; the coordinator sends what a browser takes. */
function compressed(): Plugin {
  let folder = "";
  return {
    name: "shoal-compressed",
    apply: "build",
    configResolved: (config) => void (folder = join(config.root, config.build.outDir)),
    closeBundle: async () => {
      const files = await readdir(folder, { recursive: true, withFileTypes: true });
      const texts = files.filter((file) => file.isFile() && /\.(js|css|html|svg)$/.test(file.name));
      await Promise.all(texts.map((file) => compress(join(file.parentPath, file.name))));
    },
  };
}

async function compress(path: string): Promise<void> {
  const data = await readFile(path);
  if (data.length < COMPRESSED_MIN) return;
  const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: data.length };
  const br = await promisify(brotliCompress)(data, { params });
  const gz = await promisify(gzip)(data, { level: 9 });
  if (br.length < data.length) await writeFile(`${path}.br`, br);
  if (gz.length < data.length) await writeFile(`${path}.gz`, gz);
}

export default defineConfig({
  plugins: [react(), compressed()],
  build: {
    outDir: "shoal_dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    // The coordinator's content security policy allows files of its own only: nothing may become a data: URL or inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: {
      input: { index: "index.html", edge: "src/edge/index.ts" },
      preserveEntrySignatures: "exports-only",
      // Pages import the edge client by name.
      output: { entryFileNames: ({ name }) => (name === "edge" ? "edge.js" : "assets/[name]-[hash].js") },
    },
  },
  server: { port: 5173, proxy: { "/api": { target: coordinator, changeOrigin: false } } },
});
