import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const coordinator = process.env.SHOAL_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "shoal_dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    // The coordinator's content security policy allows files of its own only: nothing may become a data: URL or inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { port: 5173, proxy: { "/api": { target: coordinator, changeOrigin: false } } },
});
