// What of uPlot's own types (uPlot.d.ts of its package) is used: it is called in one place, with
// options that chart.js checks by drawing.
declare const uPlot: any;
export default uPlot;
