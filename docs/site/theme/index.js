// VitePress' own theme, without its fonts: the site loads nothing that a system has.
import { defineAsyncComponent } from 'vue';
import theme from 'vitepress/theme-without-fonts';
import Versions from './Versions.vue';
import './style.css';

export default {
  extends: theme,
  enhanceApp({ app }) {
    app.component('Versions', Versions);
    app.component('Playground', defineAsyncComponent(() => import('./Playground.vue')));
  },
};
